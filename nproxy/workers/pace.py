"""How often a worker tells its metrics unasked: seldom, where that takes long."""

from __future__ import annotations

SHARE = 0.01
"""Of a worker's time, what it may take."""


class Pace:
    """`due(now)`, and `took(began, ended)` when they were told. Times in seconds, of any one clock."""

    def __init__(self) -> None:
        self._next = 0.0

    def due(self, now: float) -> bool:
        return now >= self._next

    def took(self, began: float, ended: float) -> None:
        """They were told, for whatever reason."""
        self._next = ended + (ended - began) / SHARE
