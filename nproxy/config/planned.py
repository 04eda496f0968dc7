"""Keys that are planned but do not exist yet: refused with a message that says so, never ignored.

An entry is removed from this file in the same change that implements its key.
"""

from __future__ import annotations

from nproxy.config.tree import Path

PLANNED_KEYS: frozenset[str] = frozenset()


def _pattern(path: Path) -> str:
    return "".join("[]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def is_planned_key(path: Path) -> bool:
    """Whether a key is planned for later."""
    return _pattern(path) in PLANNED_KEYS
