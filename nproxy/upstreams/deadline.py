"""Which of several time limits passes first."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Self


@dataclass(frozen=True, slots=True)
class Deadline:
    """The next time limit of a call, in the loop's time, and the `timeouts` key that it comes from."""

    at: float
    which: str

    @classmethod
    def soonest(cls, *limits: tuple[str, float, float | None]) -> Self:
        """The first to pass of some (key, start, seconds or None)."""
        return min(
            (cls(start + seconds, which) for which, start, seconds in limits if seconds is not None),
            key=lambda deadline: deadline.at,
            default=cls(inf, "total"),
        )
