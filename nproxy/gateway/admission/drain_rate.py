"""How fast permits come back: what a client is told about when to try again."""

from __future__ import annotations

from math import exp

SECONDS = 10.0
"""What is this much older counts 1/e of what is new."""


class DrainRate:
    """Choices given back per second, of late."""

    __slots__ = ("_began", "_choices", "_last")

    def __init__(self) -> None:
        self._began: float | None = None
        self._last = 0.0
        self._choices = 0.0

    def count(self, choices: int, now: float) -> None:
        """So many choices have come back."""
        if self._began is None:
            self._began = now
        self._choices = self._choices * exp((self._last - now) / SECONDS) + choices
        self._last = now

    def per_second(self, now: float) -> float:
        """0 where nothing has come back yet. What has lasted less than SECONDS is not divided by all of them."""
        if self._began is None:
            return 0.0
        seen = SECONDS * (1 - exp(-max(now - self._began, 1.0) / SECONDS))
        return self._choices * exp((self._last - now) / SECONDS) / seen
