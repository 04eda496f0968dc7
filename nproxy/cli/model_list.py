"""The list of models that a server returns at /models."""

from __future__ import annotations

from typing import NamedTuple

from nproxy.cli.printable import printable
from nproxy.openai.jsonvalue import loads


class Listed(NamedTuple):
    """One model. owner: as the server names it, "" if it does not."""

    name: str
    owner: str


def models_in(body: bytes) -> list[Listed] | None:
    """Return the entries of `{"data": [{"id": ...}, ...]}` that have a name; None if the body is not such a list."""
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
    """Return the message for a server whose /models is something else: usually the URL leads to a web page."""
    kind = printable(content_type.partition(";")[0], 40) or "nothing"
    return f"returned no list of models at /models, but {kind}; is this the base URL of its API?"
