"""Rates per minute: the Generic Cell Rate Algorithm (ITU-T I.371, annex A), in its virtual scheduling form.

The state of a rate is one point in time: when everything charged so far will have been worked off, at the limit's pace.
A key that has been idle for a minute may spend a minute's worth at once; after that, it may spend at an even pace. So
in any t seconds, at most limit x (1 + t / 60) units are admitted.

A charge may later be settled for another amount, within bounds. If it was too high, the point in time becomes what it
would be if the actual amount had been charged at first. What was worked off without need, because nothing else was
charged then, does not come back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from nproxy.gateway.admission.messages import Ask, Kind, Level
from nproxy.gateway.callers import UNLIMITED

MINUTE = 60.0
MOST_MINUTES = 60
"""A charge is settled for at most so many minutes of its rate, so that an upstream that reports 10^15 tokens does not
lock a key out for ever. It is an hour, not less, so that a wide request, which may well spend half an hour's worth of
its key's rate, still pays for all of it."""
_ROUNDING = 1e-6
"""Seconds by which sums of floats may be off; far less than one unit of any rate takes."""
_FEW = 32
"""So few steps are not worth being joined."""


@dataclass(slots=True, eq=False)
class _Step:
    """What a charge does to the point in time `until`: it becomes max(until + seconds, least).

    Two such steps, one after the other, are a step of the same form.
    """

    seconds: float
    """How long the limit takes for what was charged."""
    least: float
    """When it is worked off if nothing else was to be worked off at its time."""
    final: bool = False
    """The charge is settled."""

    def after(self, until: float) -> float:
        return max(until + self.seconds, self.least)

    def reduce(self, seconds: float) -> None:
        self.seconds -= seconds
        self.least -= seconds

    def join(self, following: _Step) -> None:
        """Do what the following step does, too."""
        self.seconds += following.seconds
        self.least = following.after(self.least)

    def scale(self, by: float, now: float) -> None:
        self.seconds *= by
        self.least = now + (self.least - now) * by


@dataclass(frozen=True, slots=True, eq=False)
class Charge:
    """An amount of one rate that was charged, and has to be settled once."""

    what: Kind
    """The rate."""
    amount: int
    """In units of the rate."""
    limit: int
    """The limit per minute when it was charged."""
    step: _Step


class Meters:
    """What one key has spent of each rate. The limits come with each call.

    What was spent is spent in units: under another limit than before, it takes another time to work off.
    """

    __slots__ = ("_meters",)

    def __init__(self) -> None:
        self._meters: defaultdict[Kind, _Meter] = defaultdict(_Meter)

    def behind(self, what: Kind, now: float) -> float:
        """Return the seconds until nothing that was spent counts any more."""
        return max(0.0, self._meters[what].until - now)

    def wait(self, what: Kind, amount: int, limit: int, now: float) -> float:
        """Return the seconds until an amount may be spent; 0 for now. amount: at most the limit."""
        self._meters[what].scale(limit, now)
        return wait_for(amount, limit, self.behind(what, now))

    def charge(self, what: Kind, amount: int, limit: int, now: float) -> Charge:
        """Count an amount as spent, even if it exceeds the limit."""
        meter = self._meters[what]
        meter.scale(limit, now)
        return Charge(what, amount, limit, meter.add(amount, now))

    def settle(self, charge: Charge, amount: int, now: float) -> None:
        """Correct a charge to the actual amount, which may be the same; see MOST_MINUTES. No more corrections follow.

        What was spent in addition counts from now on.
        """
        meter, amount = self._meters[charge.what], min(amount, MOST_MINUTES * charge.limit)
        if amount > charge.amount:
            meter.finish(meter.add(amount - charge.amount, now))
        less = max(0, charge.amount - amount)
        meter.finish(charge.step, charge.step.seconds * less / charge.amount if less else 0.0)

    def full(self, now: float) -> bool:
        """Whether nothing that was spent counts any more."""
        return all(meter.until <= now for meter in self._meters.values())


class _Meter:
    """What one key has spent of one rate.

    until: when it will have been worked off.
    """

    __slots__ = ("_join_at", "_limit", "_steps", "until")

    def __init__(self) -> None:
        self.until = -inf
        self._limit = 0  # per minute, of which the times speak; 0 before it was told
        self._steps: list[_Step] = []  # in the order of the charges, since nothing was left to be worked off
        self._join_at = _FEW  # when there are so many

    def scale(self, limit: int, now: float) -> None:
        """Have the times speak of this limit."""
        before, self._limit = self._limit, limit
        if not before or before == limit:
            return
        for step in self._steps:
            step.scale(before / limit, now)
        self._count()

    def add(self, amount: int, now: float) -> _Step:
        """Count an amount under the limit that was last told."""
        if self.until <= now:  # corrections of what was charged before change nothing any more
            self._steps.clear()
        if len(self._steps) >= self._join_at:
            self._join()
        seconds = MINUTE * amount / self._limit
        step = _Step(seconds, now + seconds)
        self._steps.append(step)
        self.until = step.after(self.until)
        return step

    def finish(self, step: _Step, less: float = 0.0) -> None:
        """Make a step final. less: the seconds by which it is reduced."""
        if less:
            step.reduce(less)
            self._count()
        step.final = True

    def _count(self) -> None:
        """Count anew what all steps do, one after the other."""
        until = -inf
        for step in self._steps:  # as `after`; there may be a thousand
            until += step.seconds
            if until < step.least:
                until = step.least
        self.until = until

    def _join(self) -> None:
        """Join steps that are final and follow each other."""
        steps: list[_Step] = []
        for step in self._steps:
            if steps and step.final and steps[-1].final:
                steps[-1].join(step)
            else:
                steps.append(step)
        self._steps, self._join_at = steps, 2 * len(steps) + _FEW


def wait_for(amount: int, limit: int, behind: float) -> float:
    """Return the seconds until an amount may be spent; 0 for now. behind: seconds that earlier charges still count."""
    seconds = behind + MINUTE * amount / limit - MINUTE
    return seconds if seconds > _ROUNDING else 0.0


def limits_of(ask: Ask) -> tuple[tuple[Kind, int, int], ...]:
    """Return each rate that limits a request: its kind, what the request is charged of it at first, its limit.

    If the estimate of tokens exceeds the limit, the limit is charged; the rest is charged when it is known.
    """
    rates = ask.rates
    if rates is UNLIMITED:
        return ()
    counted: tuple[tuple[Kind, int, int | None], ...] = (
        ("requests", 1, rates.requests),
        ("choices", ask.choices, rates.choices),
        ("tokens", ask.tokens, rates.tokens),
    )
    return tuple([(what, min(amount, limit), limit) for what, amount, limit in counted if limit is not None])


def levels_of(meters: Meters, rates: Iterable[tuple[Kind, int]], now: float) -> tuple[Level, ...]:
    """Return the levels of these rates, each with its limit."""
    return tuple([Level(what, limit, meters.behind(what, now)) for what, limit in rates])
