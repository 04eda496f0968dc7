"""What a reference inside a JSON schema refers to."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from nproxy.openai.jsonvalue import JSON

_STEPS = 8


def referred(schema: JSON, whole: JSON) -> JSON:
    """Return the schema that one refers to, over a few steps at most; itself if it refers to none.

    whole: the schema in which both are.
    """
    for _ in range(_STEPS):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        where = place(reference) if isinstance(reference, str) else None
        if where is None:
            break
        schema = part_at(whole, where)
    return schema


def place(reference: str) -> tuple[str, ...] | None:
    """Return the names on the way to what a reference inside the same schema points to; None for any other."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    names = unquote(reference).split("/")[1:]
    return tuple([name.replace("~1", "/").replace("~0", "~") for name in names])


def part_at(part: JSON, where: Sequence[str]) -> JSON:
    """Return what is at a place, None if nothing is."""
    for name in where:
        if isinstance(part, dict):
            part = part.get(name)
        elif isinstance(part, list) and name.isdecimal() and len(name) < 9 and int(name) < len(part):
            part = part[int(name)]
        else:
            return None
    return part
