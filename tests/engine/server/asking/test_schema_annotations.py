"""Names and formats that clients' libraries write into schemas, and that change nothing about what a schema takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.grammar import Compiler
from engine.server.asking.schema_annotations import without_annotations
from engine.server.asking.structure import grammar_of, json_rule
from tests.engine.server.asking.test_structure import spelled

NUMBER = {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "meant"),
    [
        ({"$id": "Output Format", **NUMBER}, {"$id": "Output%20Format", **NUMBER}),
        ({"$id": "::Foo::Bar", **NUMBER}, {"$id": "%3A%3AFoo%3A%3ABar", **NUMBER}),
        ({"$id": "a#b#c"}, {"$id": "a%23b%23c"}),
        ({"$id": "http://x:abc/"}, {"$id": "http%3A//x%3Aabc/"}),
        ({"$ref": "My X#/$defs/y"}, {"$ref": "My%20X#/$defs/y"}),
        ({"$schema": "https://json-schema.org/draft-07/schema#", **NUMBER}, NUMBER),
        ({"$id": "https://x.y/z", **NUMBER}, {"$id": "https://x.y/z", **NUMBER}),
        ({"$schema": "foo", **NUMBER}, NUMBER),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", **NUMBER},
            {"$schema": "http://json-schema.org/draft-07/schema#", **NUMBER},
        ),
        ({"$ref": "#/$defs/Foo[int]"}, {"$ref": "#/$defs/Foo%5Bint%5D"}),
        ({"$ref": "#/$defs/A B"}, {"$ref": "#/$defs/A%20B"}),
        ({"$ref": "#/$defs/A%20B"}, {"$ref": "#/$defs/A%20B"}),
        ({"$ref": "#/$defs/100%"}, {"$ref": "#/$defs/100%25"}),
        ({"type": "string", "format": "path"}, {"type": "string"}),
        ({"type": "string", "format": "uuid"}, {"type": "string", "format": "uuid"}),
        (
            {"properties": {"format": {"type": "string", "format": "int64"}}},
            {"properties": {"format": {"type": "string"}}},
        ),
        ({"properties": {"$id": {"$id": "no URI"}}}, {"properties": {"$id": {"$id": "no%20URI"}}}),
        ({"enum": [{"format": "path"}]}, {"enum": [{"format": "path"}]}),
        ({"anyOf": [{"format": "byte"}, True]}, {"anyOf": [{}, True]}),
        (True, True),
    ],
    ids=str,
)
def test_what_is_left_of_a_schema(schema: Any, meant: Any) -> None:
    before = json.dumps(schema)
    assert without_annotations(schema) == meant
    assert json.dumps(schema) == before, "the client's own is not changed"


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "Output Format", "type": "object", "properties": {"a": NUMBER}},  # griptape
        {"$defs": {"Foo[int]": NUMBER}, "type": "array", "items": {"$ref": "#/$defs/Foo[int]"}},
        {"$defs": {"A B": NUMBER}, "$ref": "#/$defs/A B"},
        {"$schema": "foo", **NUMBER},
        {"$schema": "http://json-schema.org/schema#", **NUMBER},
        {"$id": "::Foo::Bar", "$defs": {"y": NUMBER}, "$ref": "#/$defs/y"},
        {"$id": "My X", "$defs": {"y": NUMBER}, "$ref": "My X#/$defs/y"},
        {"type": "object", "properties": {"p": {"type": "string", "format": "path"}}},  # pydantic's Path
    ],
    ids=str,
)
def test_such_schemas_are_compiled(schema: Any) -> None:
    tokenizer = spelled(["".join(map(chr, range(32, 127)))])
    end = tokenizer.token_to_id("<end>")
    assert end is not None
    Compiler(tokenizer.to_str(), tokenizer.get_vocab_size(), {end}).compile(grammar_of(json_rule(schema, "s")))
