"""Objects of a schema that name their properties have no others, unless the schema says so (ADR 0045)."""

from __future__ import annotations

from collections.abc import Mapping

from nproxy.openai.jsonvalue import JSON

_SAID = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties"})
"""Keywords that say which other properties there may be."""
_JOINED = frozenset({"allOf", "anyOf", "oneOf", "$ref", "$dynamicRef"})
"""Next to `properties`, these add further properties of the same object."""
_CONDITIONS = frozenset({"if", "not", "dependentSchemas", "dependencies"})
_BY_NAME = ("properties", "$defs", "definitions")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "contains")


class _PutTogether(Exception):
    """An object of the schema is composed of several schemas."""


def closed(schema: JSON) -> JSON:
    """Return the schema with `additionalProperties: false` in each object that has `properties` and says nothing about
    others.

    It stays unchanged if an object is composed of several schemas, which would forbid each other's properties.
    """
    try:
        return _closed(schema)
    except _PutTogether:
        return schema


def _closed(schema: JSON) -> JSON:
    if not isinstance(schema, dict):
        return schema
    if _puts_together(schema):
        raise _PutTogether
    made = dict(schema)
    for name in _BY_NAME:
        if isinstance(inside := schema.get(name), dict):
            made[name] = {key: _closed(part) for key, part in inside.items()}
    for name in _LISTED:
        if isinstance(inside := schema.get(name), list):
            made[name] = [_closed(part) for part in inside]
    for name in _SINGLE:
        if name in schema:
            made[name] = _closed(schema[name])
    if _ends_with_its_properties(schema):
        made["additionalProperties"] = False
    return made


def _ends_with_its_properties(schema: Mapping[str, JSON]) -> bool:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or schema.keys() & _SAID:
        return False
    return not isinstance(required, list) or all(name in properties for name in required if isinstance(name, str))


def _puts_together(schema: Mapping[str, JSON]) -> bool:
    several = schema.get("allOf")
    if isinstance(several, list) and len(several) > 1:
        return True
    return bool(schema.keys() & _CONDITIONS) or ("properties" in schema and bool(schema.keys() & _JOINED))
