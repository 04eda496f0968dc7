"""Integers in JSON schemas that cannot be enforced: grammars hold numbers as doubles, which are exact up to 2**53."""

from __future__ import annotations

from nproxy.openai.jsonvalue import JSON

_EXACT = 1 << 53
_OF_TYPES = {-(1 << 63), (1 << 63) - 1, (1 << 64) - 1}
"""Bounds that state the type of an integer. Grammars have no longer integers than 64 bits."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def inexact(schema: JSON) -> int | None:
    """Return the first integer of a schema that an answer could miss or exceed; None if there is none."""
    if isinstance(schema, list):
        return _first(schema)
    if not isinstance(schema, dict):
        return None
    for key, value in schema.items():
        if key in ("const", "enum"):
            found = _in_value(value)
        elif key in _BOUNDS and isinstance(value, int):
            found = None if value in _OF_TYPES else _in_value(value)
        else:
            found = inexact(value)
        if found is not None:
            return found
    return None


def _first(parts: list[JSON]) -> int | None:
    return next((found for part in parts if (found := inexact(part)) is not None), None)


def _in_value(value: JSON) -> int | None:
    if isinstance(value, int):
        return value if abs(value) > _EXACT else None
    parts = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    return next((found for part in parts if (found := _in_value(part)) is not None), None)
