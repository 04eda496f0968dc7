"""Integers of schemas that a grammar would round are refused, wherever they are."""

from __future__ import annotations

from typing import Any

import pytest

from engine.server.asking.structure import json_rule
from nproxy.openai.errors import ApiError

BIG = 2**53 + 1


@pytest.mark.parametrize(
    "schema",
    [
        {"const": BIG},
        {"enum": [1, "a", -BIG]},
        {"enum": [{"id": [BIG]}]},
        {"type": "integer", "minimum": BIG},
        {"type": "integer", "exclusiveMaximum": 10**20},
        {"type": "object", "properties": {"id": {"anyOf": [{"type": "string"}, {"const": BIG}]}}},
        {"$defs": {"id": {"enum": [BIG]}}, "$ref": "#/$defs/id"},
    ],
)
def test_what_a_double_cannot_hold_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="beyond 2\\*\\*53") as refused:
        json_rule(schema, "response_format")
    assert (refused.value.status, refused.value.param) == (400, "response_format")


@pytest.mark.parametrize(
    "schema",
    [
        {"const": 2**53},
        {"enum": [True, 1e300, str(BIG)]},
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"type": "integer", "maximum": 2**64 - 1},
        {"type": "integer", "default": BIG},
        {"type": "object", "properties": {"enum": {"type": "integer", "maximum": 2**63 - 1}}},
        {"type": "integer", "maximum": [BIG]},
    ],
)
def test_what_it_can_hold_and_the_limits_of_types_are_not(schema: dict[str, Any]) -> None:
    assert json_rule(schema, "response_format").startswith("%json ")
