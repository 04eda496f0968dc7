"""What a server said, made fit for a terminal."""

from __future__ import annotations

from nproxy.openai.errors import shorten


def printable(text: str, limit: int = 120) -> str:
    """What a server said, on one line, without control characters, and cut."""
    return shorten(" ".join("".join(c if c.isprintable() else " " for c in text).split()), limit)
