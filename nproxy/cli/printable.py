"""Makes a server's words safe for a terminal."""

from __future__ import annotations

from nproxy.openai.errors import shorten


def printable(text: str, limit: int = 120) -> str:
    """Return a server's words on one line, without control characters, and shortened to a limit."""
    return shorten(" ".join("".join(c if c.isprintable() else " " for c in text).split()), limit)
