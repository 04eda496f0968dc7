"""Rates per minute: the Generic Cell Rate Algorithm (ITU-T I.371, annex A), in its virtual scheduling form.

The state of a rate is one point in time: when everything charged so far will have been worked off, at the limit's pace.
A key that has been idle for a minute may spend a minute's worth at once; after that, it may spend at an even pace. So
in any t seconds, at most limit x (1 + t / 60) units are admitted.

A charge may later be settled for another amount, within bounds. If it was too high, only the part that is not worked
off yet is returned: the other part was available to other requests already.
"""

from __future__ import annotations

from collections import defaultdict
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


@dataclass(frozen=True, slots=True)
class Charge:
    """An amount of one rate that was charged."""

    what: Kind
    """The rate."""
    amount: int
    """In units of the rate."""
    limit: int
    """The limit per minute when it was charged."""
    until: float
    """When it will have been worked off, if nothing is returned before."""
    returned: float
    """How many units of the rate had been returned in all when it was charged."""


class Meters:
    """What one key has spent of each rate. The limits come with each call.

    What was spent is spent in units: under another limit than before, it takes another time to work off.
    """

    __slots__ = ("_limits", "_returned", "_until")

    def __init__(self) -> None:
        self._limits: dict[Kind, int] = {}  # of which `_until` speaks
        self._until: defaultdict[Kind, float] = defaultdict(lambda: -inf)
        self._returned: defaultdict[Kind, float] = defaultdict(float)

    def behind(self, what: Kind, now: float) -> float:
        """Return the seconds until nothing that was spent counts any more."""
        return max(0.0, self._until[what] - now)

    def wait(self, what: Kind, amount: int, limit: int, now: float) -> float:
        """Return the seconds until an amount may be spent; 0 for now. amount: at most the limit."""
        self._scale(what, limit, now)
        return wait_for(amount, limit, self.behind(what, now))

    def charge(self, what: Kind, amount: int, limit: int, now: float) -> Charge:
        """Count an amount as spent, even if it exceeds the limit."""
        self._scale(what, limit, now)
        until = self._until[what] = max(now, self._until[what]) + MINUTE * amount / limit
        return Charge(what, amount, limit, until, self._returned[what])

    def settle(self, charge: Charge, amount: int, now: float) -> None:
        """Correct a charge to the actual amount; see MOST_MINUTES."""
        what, amount = charge.what, min(amount, MOST_MINUTES * charge.limit)
        limit = self._limits[what]
        if amount > charge.amount:
            self.charge(what, amount - charge.amount, limit, now)
            return
        left = (charge.until - now) * charge.limit / MINUTE - (self._returned[what] - charge.returned)
        units = min(charge.amount - amount, max(0.0, left))
        self._until[what] -= MINUTE * units / limit
        self._returned[what] += units

    def _scale(self, what: Kind, limit: int, now: float) -> None:
        """Have `_until` speak of this limit."""
        before = self._limits.setdefault(what, limit)
        if before != limit:
            self._limits[what] = limit
            self._until[what] = now + self.behind(what, now) * before / limit

    def full(self, now: float) -> bool:
        """Whether nothing that was spent counts any more."""
        return all(until <= now for until in self._until.values())


def wait_for(amount: int, limit: int, behind: float) -> float:
    """Return the seconds until an amount may be spent; 0 for now. behind: seconds that earlier charges still count."""
    seconds = behind + MINUTE * amount / limit - MINUTE
    return seconds if seconds > _ROUNDING else 0.0


def limits_of(ask: Ask) -> tuple[tuple[Kind, int, int], ...]:
    """Return each rate that limits a request: its kind, what the request is charged of it at first, its limit.

    If the estimate of tokens exceeds the limit, the limit is charged; the rest is charged when it is known.
    """
    rates = ask.rates
    if rates is UNLIMITED or rates == UNLIMITED:
        return ()
    counted: tuple[tuple[Kind, int, int | None], ...] = (
        ("requests", 1, rates.requests),
        ("choices", ask.choices, rates.choices),
        ("tokens", ask.tokens, rates.tokens),
    )
    return tuple((what, min(amount, limit), limit) for what, amount, limit in counted if limit is not None)


def levels_of(meters: Meters, ask: Ask, now: float) -> tuple[Level, ...]:
    """Return the level of each rate that limits a request."""
    if ask.rates is UNLIMITED:
        return ()
    return tuple(Level(what, limit, meters.behind(what, now)) for what, _, limit in limits_of(ask))
