"""The list of models that a server gives at /models."""

from __future__ import annotations

from typing import NamedTuple

from nproxy.cli.printable import printable
from nproxy.openai.jsonvalue import loads


class Listed(NamedTuple):
    """One model. owner: as the server calls it, "" where it does not."""

    name: str
    owner: str


def models_in(body: bytes) -> list[Listed] | None:
    """Those of `{"data": [{"id": ...}, ...]}` that have a name; None for what is no such list."""
    try:
        value = loads(body)
    except ValueError:
        return None
    entries = value.get("data") if isinstance(value, dict) else None
    if not isinstance(entries, list):
        return None
    return [
        Listed(name, owner if isinstance(owner := entry.get("owned_by"), str) else "")
        for entry in entries
        if isinstance(entry, dict) and isinstance(name := entry.get("id"), str) and name
    ]


def no_list(content_type: str) -> str:
    """What is said of a server whose /models is something else: mostly the URL leads to a page for people."""
    kind = printable(content_type.partition(";")[0], 40) or "nothing"
    return f"gives no list of models at /models, but {kind}; is this the base URL of its API?"
