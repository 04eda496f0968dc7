"""Objects end with the properties that their schema names, where nothing else is said."""

from __future__ import annotations

from typing import Any

import pytest

from engine.server.asking.schema_strictness import closed

NAMED: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
ENDED: dict[str, Any] = {**NAMED, "additionalProperties": False}


def kind(*values: str) -> dict[str, Any]:
    """An object that says which of several it is."""
    said = {"const": values[0]} if len(values) == 1 else {"enum": [*values]}
    return {"type": "object", "properties": {"kind": said, "x": {"type": "integer"}}, "required": ["kind"]}


NAMES_A = {"$ref": "#/$defs/A"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (NAMED, ENDED),
        ({"type": "object", "properties": {}}, {"type": "object", "properties": {}, "additionalProperties": False}),
        ({"type": "array", "items": NAMED}, {"type": "array", "items": ENDED}),
        ({"prefixItems": [NAMED, True]}, {"prefixItems": [ENDED, True]}),
        ({"anyOf": [NAMED, {"type": "null"}]}, {"anyOf": [ENDED, {"type": "null"}]}),
        (
            {"$defs": {"A": NAMED}, "allOf": [NAMES_A]},
            {"$defs": {"A": ENDED}, "allOf": [NAMES_A]},
        ),
        (
            {"properties": {"allOf": NAMED, "if": True}},
            {"properties": {"allOf": ENDED, "if": True}, "additionalProperties": False},
        ),
        ({"additionalProperties": NAMED}, {"additionalProperties": ENDED}),
        ({"oneOf": [NAMED, {"type": "null"}]}, {"oneOf": [ENDED, {"type": "null"}]}),
        (
            {"oneOf": [kind("a"), kind("b"), kind("c", "d")]},
            {"oneOf": [{**one, "additionalProperties": False} for one in (kind("a"), kind("b"), kind("c", "d"))]},
        ),
        ({"enum": [NAMED], "default": NAMED}, {"enum": [NAMED], "default": NAMED}),
    ],
)
def test_objects_that_name_their_properties_have_no_others(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    before = repr(schema)
    assert closed(schema) == expected
    assert repr(schema) == before, "the client's own stays as it was sent"
    assert closed(expected) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        True,
        {**NAMED, "additionalProperties": True},
        {**NAMED, "additionalProperties": {"type": "integer"}},
        {**NAMED, "patternProperties": {"^x": True}},
        {**NAMED, "unevaluatedProperties": False},
        {**NAMED, "required": ["a", "b"]},
        {"allOf": [NAMED, {"properties": {"b": True}}]},
        {**NAMED, "anyOf": [{"properties": {"b": True}}, {"properties": {"c": True}}]},
        {"$defs": {"A": NAMED}, "$ref": "#/$defs/A", "properties": {"b": True}},
        {**NAMED, "if": {"properties": {"a": {"const": "x"}}}, "then": {"properties": {"b": True}}},
        {"items": {**NAMED, "not": {"required": ["b"]}}},
        {"oneOf": [NAMED, {"type": "object", "properties": {"b": True}}]},
        {"oneOf": [NAMED, {"type": ["object", "null"], "properties": {"b": True}, "required": ["b"]}]},
        {"oneOf": [NAMED, {}]},
        {"oneOf": [kind("a"), kind("a", "b")]},
        {"oneOf": [kind("a"), {**kind("b"), "required": []}]},
    ],
    ids=repr,
)
def test_what_says_otherwise_or_is_put_together_stays_as_it_is(schema: Any) -> None:
    assert closed(schema) == schema
