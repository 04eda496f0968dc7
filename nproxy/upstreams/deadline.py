"""The time limits of a call, and which of several ends first."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Self

from nproxy.config import Timeouts


class Limit(NamedTuple):
    """A time limit: seconds from the start of the call, and the `timeouts` key that it comes from."""

    seconds: float
    which: str

    @classmethod
    def soonest(cls, **limits: float | None) -> Self:
        """The first of some limits to end, each given under its key; None for no limit."""
        which = min(limits, key=lambda key: _seconds(limits[key]))
        return cls(_seconds(limits[which]), which)


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """An upstream's `timeouts`, ready for use, in seconds; infinity for no limit.

    whole: for an answer in JSON form. first: until the first event of a stream. idle: between two of its events. total:
    for the whole call.
    """

    whole: Limit
    first: Limit
    idle: float
    total: float

    @classmethod
    def of(cls, times: Timeouts) -> Self:
        """Return the limits of one call."""
        return cls(
            Limit.soonest(response=times.response, total=times.total),
            Limit.soonest(first_event=times.first_event, total=times.total),
            _seconds(times.idle),
            _seconds(times.total),
        )


def _seconds(given: float | None) -> float:
    return inf if given is None else given
