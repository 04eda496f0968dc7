"""Which of several time limits passes first."""

from __future__ import annotations

from math import inf
from typing import NamedTuple, Self


class Deadline(NamedTuple):
    """The next time limit of a call, in the loop's time, and the `timeouts` key that it comes from."""

    at: float
    which: str

    @classmethod
    def soonest(cls, *limits: tuple[str, float, float | None]) -> Self:
        """The first to pass of some (key, start, seconds or None)."""
        at, first = inf, "total"
        for which, start, seconds in limits:
            if seconds is not None and start + seconds < at:
                at, first = start + seconds, which
        return cls(at, first)
