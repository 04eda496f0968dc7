"""Patterns of schemas mean what they mean in ECMA-262."""

from __future__ import annotations

from typing import Any

import pytest

from engine.server.asking.schema_annotations import without_annotations


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^[+--]$", r"^[+-\x2d]$"),
        ("^[a&&b~~]{3}$", r"^[a\x26\x26b\x7e\x7e]{3}$"),
        (r"^[$[\]]$", r"^[$\x5b\]]$"),
        (r"[\w-.]", r"[\w\x2d.]"),
        (r"\[a&&b", r"\[a&&b"),
        ("^[a-z]+@[^ ]+$", "^[a-z]+@[^ ]+$"),
        ("[a&&", "[a&&"),
    ],
)
def test_in_a_class_there_are_characters(pattern: str, expected: str) -> None:
    schema: dict[str, Any]
    schema = {"anyOf": [{"pattern": pattern}, {"type": "object", "patternProperties": {pattern: {"pattern": pattern}}}]}
    made = {
        "anyOf": [{"pattern": expected}, {"type": "object", "patternProperties": {expected: {"pattern": expected}}}]
    }
    assert without_annotations(schema) == made


def test_what_is_no_pattern_stays_as_it_is() -> None:
    schema: dict[str, Any] = {
        "const": {"pattern": "[&&]"},
        "enum": [{"pattern": "[&&]"}],
        "properties": {"pattern": {"type": "string"}},
    }
    assert without_annotations(schema) == schema


def test_a_property_may_have_the_name_of_a_keyword() -> None:
    schema: dict[str, Any] = {"properties": {"const": {"pattern": "[&&]"}}}
    assert without_annotations(schema) == {"properties": {"const": {"pattern": r"[\x26\x26]"}}}


@pytest.mark.timeout(20)  # a search from each bracket to the end of the text would take many minutes
def test_a_long_pattern_is_read_in_proportion_to_its_length() -> None:
    assert without_annotations({"pattern": "[" * 250_000}) == {"pattern": "[" * 250_000}
