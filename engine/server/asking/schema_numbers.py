"""Integers in JSON schemas that cannot be enforced: grammars hold numbers as doubles, which are exact up to 2**53."""

from __future__ import annotations

from collections.abc import Iterator

from engine.server.asking.schema_annotations import BY_NAME
from nproxy.openai.jsonvalue import JSON

_EXACT = 1 << 53
_OF_TYPES = {-(1 << 63), (1 << 63) - 1, (1 << 64) - 1}
"""Bounds that state the type of an integer. Grammars have no longer integers than 64 bits."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def inexact(schema: JSON) -> int | None:
    """Return the first integer of a schema that an answer could miss or exceed; None if there is none."""
    return next((number for number in _enforced(schema) if abs(number) > _EXACT), None)


def _enforced(schema: JSON) -> Iterator[int]:
    """Yield the integers on which it depends what a schema accepts."""
    if isinstance(schema, list):
        for part in schema:
            yield from _enforced(part)
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in ("const", "enum"):
            yield from _integers(value)
        elif key in _BOUNDS:
            if isinstance(value, int) and value not in _OF_TYPES:
                yield value
        elif key in BY_NAME and isinstance(value, dict):
            yield from _enforced([*value.values()])
        else:
            yield from _enforced(value)


def _integers(value: JSON) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    for part in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from _integers(part)
