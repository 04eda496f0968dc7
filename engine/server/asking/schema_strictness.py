"""Objects of a schema that name their properties have no others, unless the schema says so (ADR 0045)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nproxy.openai.jsonvalue import JSON, dumps

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

    It stays unchanged if an object is composed of several schemas, which would forbid each other's properties, or is
    one of several that would exclude each other only then.
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
            if name == "oneOf" and made[name] != inside and not _exclude_each_other(inside):
                raise _PutTogether
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


def _exclude_each_other(schemas: Sequence[JSON]) -> bool:
    """Whether no object fits two of these: all require one property, and each names other values for it.

    Closing them would make others exclude each other, too, so that more would fit one of them alone.
    """
    objects = [schema for schema in schemas if _may_be_object(schema)]
    if len(objects) < 2:
        return True
    named = [_values(schema) for schema in objects]
    for name in named[0]:
        values = [value for each in named for value in each.get(name, ())]
        if all(name in each for each in named) and len({dumps(value) for value in values}) == len(values):
            return True
    return False


def _may_be_object(schema: JSON) -> bool:
    kind = schema.get("type", "object") if isinstance(schema, dict) else "object"
    return kind == "object" or (isinstance(kind, list) and "object" in kind)


def _values(schema: JSON) -> dict[str, list[JSON]]:
    """Return the values that a schema names for each property that it requires, where it names any."""
    required = schema.get("required") if isinstance(schema, dict) else None
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(required, list) or not isinstance(properties, dict):
        return {}
    found: dict[str, list[JSON]] = {}
    for name in (name for name in required if isinstance(name, str)):
        one = properties.get(name)
        if isinstance(one, dict) and "const" in one:
            found[name] = [one["const"]]
        elif isinstance(one, dict) and isinstance(values := one.get("enum"), list):
            found[name] = values
    return found
