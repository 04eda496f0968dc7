"""Objects of a schema that name their properties have no others, unless the schema says so (ADR 0045)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from engine.text.schema_references import part_at, place, referred
from nproxy.openai.jsonvalue import JSON, dumps

_SAID = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties"})
"""Keywords that say which other properties there may be."""
_JOINED = frozenset({"allOf", "anyOf", "oneOf", "$ref", "$dynamicRef"})
"""Next to `properties`, these add further properties of the same object."""
_CONDITIONS = frozenset({"if", "not", "dependentSchemas", "dependencies"})
_DEFINITIONS = ("$defs", "definitions")
_BY_NAME = ("properties", "patternProperties", *_DEFINITIONS)
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = ("items", "additionalItems", "additionalProperties", "contains")


class _PutTogether(Exception):
    """An object of the schema is composed of several schemas."""


def closed(schema: JSON) -> JSON:
    """Return the schema with `additionalProperties: false` in each object that has `properties` and says nothing about
    others, and with `anyOf` for each `oneOf` whose schemas are known to exclude each other.

    It stays unchanged if an object is composed of several schemas, which would forbid each other's properties, or is
    one of several that would exclude each other only then.
    """
    try:
        return _Closing(schema).made()
    except _PutTogether:
        return schema


class _Closing:
    """One schema on its way through `closed`. whole: where its references point."""

    def __init__(self, whole: JSON) -> None:
        self._whole = whole
        self._known: dict[tuple[int, ...], tuple[Sequence[JSON], bool, bool]] = {}  # many may refer to the same ones
        self._places: set[tuple[str, ...]] = set()  # that references name, outside of definitions
        self._left: list[tuple[str, ...]] = []  # those of them that have not been closed

    def made(self) -> JSON:
        """Return the whole as `closed` does; raise _PutTogether."""
        made = self._closed(self._whole)
        if self._left:
            made = _copied(made)
        while self._left:
            *where, name = self._left.pop()
            around = part_at(made, where)
            if isinstance(around, dict) and name in around:
                around[name] = self._closed(around[name])
        return made

    def _closed(self, schema: JSON) -> JSON:
        if not isinstance(schema, dict):
            return schema
        if "$id" in schema and schema is not self._whole:  # references inside point into this part
            return _Closing(schema).made()
        if _puts_together(schema):
            raise _PutTogether
        self._note(schema.get("$ref"))
        made = dict(schema)
        for name in _BY_NAME:
            if isinstance(inside := schema.get(name), dict):
                made[name] = {key: self._closed(part) for key, part in inside.items()}
        for name in _LISTED:
            if isinstance(inside := schema.get(name), list):
                made[name] = [self._closed(part) for part in inside]
        if isinstance(several := schema.get("oneOf"), list):
            _, objects_exclude, all_exclude = self._exclusion(several)
            if made["oneOf"] != several and not objects_exclude:
                raise _PutTogether
            if all_exclude and "anyOf" not in schema and not self._into_one_of:
                made["anyOf"] = made.pop("oneOf")
        for name in _SINGLE:
            if isinstance(inside := schema.get(name), dict):
                made[name] = self._closed(inside)
        if _ends_with_its_properties(schema):
            made["additionalProperties"] = False
        return made

    def _note(self, reference: JSON) -> None:
        """Remember a place that may be under no keyword whose schemas are closed, as in OpenAPI's components."""
        where = place(reference) if isinstance(reference, str) else None
        if not where or where in self._places or (len(where) == 2 and where[0] in _DEFINITIONS):
            return
        self._places.add(where)
        self._left.append(where)

    @cached_property
    def _into_one_of(self) -> bool:
        """Whether a reference may point into a `oneOf`, which must keep its name."""
        return b"/oneOf/" in dumps(self._whole)

    def _exclusion(self, schemas: Sequence[JSON]) -> tuple[Sequence[JSON], bool, bool]:
        """Return what these refer to, whether no object fits two of them, and whether nothing does."""
        meant = [referred(schema, self._whole) for schema in schemas]
        key = tuple(map(id, meant))
        if key not in self._known:
            differ = len({*key}) == len(key)
            self._known[key] = (meant, differ and _exclude_each_other(meant), differ and _fit_no_two(meant))
        return self._known[key]


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


def _copied(part: JSON) -> JSON:
    if isinstance(part, dict):
        return {name: _copied(inside) for name, inside in part.items()}
    return [_copied(inside) for inside in part] if isinstance(part, list) else part


def _fit_no_two(schemas: Sequence[JSON]) -> bool:
    """Whether it is known that nothing fits two of these: they name other values, or have other types, objects as in
    `_exclude_each_other`.
    """
    named = [_named(schema) for schema in schemas]
    if all(named):
        return _differ([value for values in named for value in values])
    kinds = [kind for schema in schemas for kind in _kinds(schema) if kind != "object"]
    return all(map(_kinds, schemas)) and len({*kinds}) == len(kinds) and _exclude_each_other(schemas)


def _kinds(schema: JSON) -> frozenset[JSON]:
    """Return the types that a schema names, integers as the numbers that they are; none if it is open."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    kinds = kind if isinstance(kind, list) else [kind]
    return frozenset(["number" if one == "integer" else one for one in kinds if isinstance(one, str)])


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
        if all(name in each for each in named) and _differ(values):
            return True
    return False


def _differ(values: Sequence[JSON]) -> bool:
    """Whether no two values are equal; 1 and 1.0 are."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    others = [dumps(value) for value in values if isinstance(value, str | bool | None)]
    return len({*numbers}) + len({*others}) == len(values)


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
        if values := _named(properties.get(name)):
            found[name] = values
    return found


def _named(schema: JSON) -> list[JSON]:
    """Return the values that a schema names; none if it does not."""
    if not isinstance(schema, dict):
        return []
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else []
