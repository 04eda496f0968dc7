"""Keys that are promised but not there yet: refused with that word, never ignored.

An entry leaves this file in the same change that gives its key a function.
"""

from __future__ import annotations

from nproxy.config.tree import Path

PLANNED_KEYS: frozenset[str] = frozenset()


def _pattern(path: Path) -> str:
    return "".join("[]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def is_planned_key(path: Path) -> bool:
    """Whether a key is promised for later."""
    return _pattern(path) in PLANNED_KEYS
