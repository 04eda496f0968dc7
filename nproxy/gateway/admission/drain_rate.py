"""How fast permits are returned, from which a client's Retry-After is computed."""

from __future__ import annotations

from math import exp

SECONDS = 10.0
"""The time constant of the moving average: a return that is this much older counts 1/e as much."""


class DrainRate:
    """Choices returned per second, as an exponential moving average."""

    __slots__ = ("_began", "_choices", "_last")

    def __init__(self) -> None:
        self._began: float | None = None
        self._last = 0.0
        self._choices = 0.0

    def count(self, choices: int, now: float) -> None:
        """Note that so many choices were returned."""
        if self._began is None:
            self._began = now
        self._choices = self._choices * exp((self._last - now) / SECONDS) + choices
        self._last = now

    def per_second(self, now: float) -> float:
        """Return the rate; 0 if nothing was returned yet. A period shorter than SECONDS is averaged over its length."""
        if self._began is None:
            return 0.0
        seen = SECONDS * (1 - exp(-max(now - self._began, 1.0) / SECONDS))
        return self._choices * exp((self._last - now) / SECONDS) / seen
