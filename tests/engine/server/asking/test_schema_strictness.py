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


def ended(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "additionalProperties": False}


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
        ({"patternProperties": {"^items$": NAMED}}, {"patternProperties": {"^items$": ENDED}}),
        ({"items": [NAMED, True], "additionalItems": NAMED}, {"items": [ENDED, True], "additionalItems": ENDED}),
        (
            {"$ref": "#/components/schemas/A", "components": {"schemas": {"A": NAMED, "B": {"properties": {}}}}},
            {"$ref": "#/components/schemas/A", "components": {"schemas": {"A": ENDED, "B": {"properties": {}}}}},
        ),
        (
            {
                "items": {"$ref": "#/x/a%7E1b"},
                "x": {"a/b": {"x": {"$ref": "#/x/c"}, "items": {"$ref": "#/x/d"}}, "d": NAMED},
            },
            {
                "items": {"$ref": "#/x/a%7E1b"},
                "x": {"a/b": {"x": {"$ref": "#/x/c"}, "items": {"$ref": "#/x/d"}}, "d": ENDED},
            },
        ),
        ({"oneOf": [NAMED, {"type": "null"}]}, {"anyOf": [ENDED, {"type": "null"}]}),
        (
            {"oneOf": [kind("a"), kind("b"), kind("c", "d")]},
            {"anyOf": [ended(kind("a")), ended(kind("b")), ended(kind("c", "d"))]},
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
        {"items": {"$ref": "#/x/A"}, "x": {"A": {**NAMED, "anyOf": [{"properties": {"b": True}}]}}, "contains": NAMED},
        {"items": {"$ref": "#/x/A/0"}, "x": {"A": 5}},
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


NAMES_B = {"$ref": "#/$defs/B%7E01"}


@pytest.mark.parametrize(
    ("several", "a", "b"),
    [
        ([NAMES_A, NAMES_B], kind("a"), kind("b", "c")),
        ([NAMES_A, kind("b")], kind("a"), True),
        ([NAMES_A, NAMES_B, {"type": ["null", "number"]}], kind("a"), NAMED | {"type": "array"}),
        ([{"$ref": "#/$defs/B%7E01", "description": "b"}, {"type": "null"}], {"type": "string"}, NAMES_A),
        ([NAMES_A, NAMES_B], {"type": "integer"}, {"type": "string"}),
        ([NAMES_A, {"const": 2}], {"enum": [1, "2"]}, True),
    ],
    ids=repr,
)
def test_what_excludes_each_other_by_reference_too_may_be_any_of_it(several: list[Any], a: Any, b: Any) -> None:
    schema: dict[str, Any] = {"items": {"oneOf": several}, "$defs": {"A": a, "B~1": b}}
    made = closed(schema)
    assert isinstance(made, dict)
    assert made["items"] == {"anyOf": [closed(one) for one in several]}
    assert closed(made) == made


@pytest.mark.parametrize(
    ("several", "a", "b"),
    [
        ([NAMES_A, NAMES_A], kind("a"), True),
        ([NAMES_A, NAMES_B], kind("a"), kind("a", "b")),
        ([NAMES_A, NAMES_B], kind("a"), {**kind("b"), "type": ["object", "null"], "required": []}),
        ([NAMES_A, NAMES_B], {"properties": {}}, {"type": "string"}),
        ([NAMES_A, NAMES_B], {"type": "integer"}, {"type": "number"}),
        ([NAMES_A, NAMES_B], {"const": 1}, {"const": 1.0}),
        ([NAMES_A, {"$ref": "#/$defs/C"}], kind("a"), True),
        ([NAMES_A, {"$ref": "#/items/oneOf/1"}], kind("a"), True),
        ([NAMES_A, {"$ref": "#/items/oneOf/" + "9" * 5000}], kind("a"), True),
        ([NAMES_A, {"$ref": "https://example.com/#/$defs/B~01"}], kind("a"), kind("b")),
        ([NAMES_A, {"$ref": "#B"}], kind("a"), {"$anchor": "B", **kind("b")}),
    ],
    ids=repr,
)
def test_one_of_those_that_may_overlap_stays_one_of_them(several: list[Any], a: Any, b: Any) -> None:
    made = closed({"items": {"oneOf": several}, "$defs": {"A": a, "B~1": b}})
    assert isinstance(made, dict) and made["items"] == {"oneOf": several}


def test_what_a_reference_points_into_keeps_its_name() -> None:
    several = {"oneOf": [{"type": "string"}, {"type": "integer"}]}
    schema: dict[str, Any] = {"properties": {"a": several, "b": {"$ref": "#/properties/a/oneOf/1"}}}
    assert closed(schema) == ended(schema)


def test_references_point_into_the_part_with_a_name_of_its_own() -> None:
    inner: dict[str, Any] = {"$id": "inner", "oneOf": [NAMES_A, NAMES_B], "$defs": {"A": kind("a"), "B~1": kind("b")}}
    made = closed({"items": inner, "$defs": {"A": kind("a"), "B~1": kind("a")}})
    assert isinstance(made, dict) and isinstance(made["items"], dict) and "anyOf" in made["items"]


@pytest.mark.timeout(20)
def test_a_long_schema_is_read_in_proportion_to_its_length() -> None:
    names = [str(number) for number in range(10_000)]
    wide: dict[str, Any] = {
        "type": "object",
        "properties": {name: {"const": name} for name in names},
        "required": names,
    }
    several: dict[str, Any] = {"oneOf": [NAMES_A, NAMES_B]}
    closed({"prefixItems": [{**several} for _ in names], "$defs": {"A": wide, "B~1": {**wide}}})
    closed({"oneOf": [{**NAMES_A} for _ in names], "$defs": {"A": wide}})
    chain: dict[str, Any] = {name: {"$ref": f"#/$defs/{number + 1}"} for number, name in enumerate(names)}
    closed({"oneOf": [{"$ref": f"#/$defs/{name}"} for name in names], "$defs": chain})
    closed({"prefixItems": [{"$ref": f"#/x/{name}"} for name in names], "x": {name: {} for name in names}})
    closed({"$ref": "#/x/0", "x": {name: {"$ref": f"#/x/{number + 1}"} for number, name in enumerate(names)}})
