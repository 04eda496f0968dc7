"""Arguments in plain text: which types a schema allows, and which value a text is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.parsers.values import ANY, Kinds, is_string, json_text, kinds_of
from nproxy.openai.jsonvalue import JSON

WHOLE: JSON = {
    "$defs": {
        "Size": {"type": "integer"},
        "Color": {"enum": ["red", "blue"]},
        "Ring": {"anyOf": [{"$ref": "#/$defs/Ring"}, {"type": "null"}]},
    },
    "properties": {"a": {"type": "array"}},
}
STRING, NUMBER = frozenset({"string"}), frozenset({"number", "integer"})


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({}, ANY),
        (True, ANY),
        (None, ANY),
        ({"type": "string"}, STRING),
        ({"type": "number"}, NUMBER),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"type": "str"}, ANY),  # no type of JSON Schema's
        ({"enum": ["a", 1, None]}, {"string", "number", "integer", "null"}),
        ({"enum": ["a", 1], "type": "string"}, STRING),
        ({"const": True}, {"boolean"}),
        ({"const": 2.0}, NUMBER),
        ({"const": 2.5}, {"number"}),
        ({"const": [1]}, {"array"}),
        ({"const": {}}, {"object"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"oneOf": [{"type": "object"}, {"$ref": "#/$defs/Size"}]}, {"object", "integer"}),
        ({"allOf": [{"$ref": "#/$defs/Color"}], "description": "d"}, STRING),
        ({"allOf": [{"type": ["string", "null"]}, {"type": ["null", "array"]}]}, {"null"}),
        ({"$ref": "#/properties/a"}, {"array"}),
        ({"$ref": "#/$defs/Ring"}, ANY),
        ({"$ref": "#/$defs/Missing"}, ANY),
        ({"$ref": "https://example.com/a.json"}, ANY),
    ],
)
def test_the_types_that_a_schema_allows(schema: JSON, kinds: Kinds) -> None:
    assert kinds_of(schema, WHOLE) == kinds


@pytest.mark.parametrize(
    ("text", "kinds", "value"),
    [
        ("12", STRING, '"12"'),
        ("null", STRING, '"null"'),
        ("12", NUMBER, "12"),
        (" 1.50\n", NUMBER, "1.50"),
        ("1e999", NUMBER, '"1e999"'),  # no number that JSON can say
        ("NaN", NUMBER, '"NaN"'),
        ("12.0", frozenset({"integer"}), "12.0"),
        ("12.5", frozenset({"integer"}), '"12.5"'),
        ("twelve", NUMBER, '"twelve"'),
        ("", NUMBER, '""'),
        ("123456789012345678901234567890", NUMBER, "123456789012345678901234567890"),
        ("true", frozenset({"boolean"}), "true"),
        ("False", frozenset({"boolean"}), "false"),
        ("1", frozenset({"boolean"}), '"1"'),
        ("None", frozenset({"string", "null"}), "null"),
        ("null", frozenset({"string", "null"}), "null"),
        ("nulls", frozenset({"string", "null"}), '"nulls"'),
        ('"a"', frozenset({"string", "null"}), r'"\"a\""'),
        ('"a"', ANY, '"a"'),
        ("None", ANY, '"None"'),
        ("a", ANY, '"a"'),
        ('{"a": "é"}', frozenset({"object"}), '{"a": "é"}'),
        ("{'a': 1}", frozenset({"object"}), "\"{'a': 1}\""),
        ("[" * 100_000, frozenset({"array"}), '"' + "[" * 100_000 + '"'),
        ("é\n", STRING, '"é\\n"'),
    ],
)
def test_a_text_as_a_value(text: str, kinds: Kinds, value: str) -> None:
    assert json_text(text, kinds) == value


TEXTS = st.one_of(
    st.text(),
    st.sampled_from(["true", "True", "false", "null", "None", "-1.5e3", '"a"', '[1, "]"]', '{"a": {}}', " 1 ", "\n"]),
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(json.dumps),
)


@given(TEXTS, st.text(max_size=2), st.frozensets(st.sampled_from(sorted(ANY)), min_size=1))
def test_what_is_called_a_string_early_becomes_one(text: str, more: str, kinds: Kinds) -> None:
    for whole in (text, text + more):
        for end in range(len(whole) + 1):
            if is_string(whole[:end], kinds):
                assert json_text(whole, kinds) == json.dumps(whole, ensure_ascii=False)
                break
        json.loads(json_text(whole, kinds))
