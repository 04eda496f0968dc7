"""The schema is the reference of the settings: every key of it is explained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nproxy.config.schema import schema as whole

SCHEMA = whole()
KEYS = [(name, key) for name, part in SCHEMA["$defs"].items() for key in part["properties"]]


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_every_key_says_what_it_is(section: str, key: str) -> None:
    assert SCHEMA["$defs"][section]["properties"][key].get("description")


@pytest.mark.parametrize("section", list(SCHEMA["$defs"]))
def test_every_section_refuses_unknown_keys(section: str) -> None:
    assert SCHEMA["$defs"][section]["additionalProperties"] is False


KEYWORDS = {
    *("$defs", "$ref", "title", "description", "default", "examples", "type", "enum", "const", "anyOf", "oneOf"),
    *("properties", "required", "additionalProperties", "minProperties", "items", "minItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "pattern"),
}
"""Those of JSON Schema 2020-12 that the settings need; a validator ignores what it does not know."""


def schemas(schema: dict[str, Any] | bool) -> Iterator[dict[str, Any]]:
    """A schema and all that are in it."""
    if isinstance(schema, bool):
        return
    yield schema
    for keyword in ("$defs", "properties"):
        for inner in schema.get(keyword, {}).values():
            yield from schemas(inner)
    for inner in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from schemas(inner)
    for keyword in ("items", "additionalProperties"):
        yield from schemas(schema.get(keyword, False))


def test_every_keyword_is_json_schemas_own() -> None:
    assert {keyword for schema in schemas(SCHEMA) for keyword in schema} <= KEYWORDS


def test_every_reference_leads_somewhere() -> None:
    references = {schema["$ref"].removeprefix("#/$defs/") for schema in schemas(SCHEMA) if "$ref" in schema}
    assert references
    assert references <= SCHEMA["$defs"].keys()


def test_bounds_are_shown() -> None:
    width = SCHEMA["$defs"]["NPolicy"]["properties"]["max_n"]
    assert (width["minimum"], width["maximum"]) == (1, 512)
