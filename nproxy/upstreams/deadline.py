"""The time limits of a call, and which of several passes first."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Self

from nproxy.config import Timeouts


class Limit(NamedTuple):
    """A time limit: seconds from when the call was made, and the `timeouts` key that it comes from."""

    seconds: float
    which: str

    @classmethod
    def soonest(cls, **limits: float | None) -> Self:
        """The first to pass of some, each under its key; None for one that never does."""
        which = min(limits, key=lambda key: _seconds(limits[key]))
        return cls(_seconds(limits[which]), which)


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """An upstream's `timeouts`, ready for use. whole: of an answer in JSON form. first: until a stream's first event.

    idle: between two of its events. total: of the whole call. In seconds; infinity for no limit.
    """

    whole: Limit
    first: Limit
    idle: float
    total: float

    @classmethod
    def of(cls, times: Timeouts) -> Self:
        return cls(
            Limit.soonest(response=times.response, total=times.total),
            Limit.soonest(first_event=times.first_event, total=times.total),
            _seconds(times.idle),
            _seconds(times.total),
        )


def _seconds(given: float | None) -> float:
    return inf if given is None else given
