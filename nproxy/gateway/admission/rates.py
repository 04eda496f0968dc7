"""Rates per minute: the Generic Cell Rate Algorithm (ITU-T I.371, annex A), in its virtual scheduling form.

All that is kept of a rate is one point in time: when everything charged so far will have been worked off, at so many
units a minute. A key that has been silent for a minute may spend a minute's worth at once; from then on it goes evenly.
So of what is asked for in any t seconds, limit x (1 + t / 60) units go through and no more.

A charge may be settled for another amount later, within bounds. Of one that was too high only that comes back which
time has not worked off yet: that part was free for others already.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import inf

from nproxy.gateway.admission.messages import Ask, Kind, Level
from nproxy.gateway.callers import UNLIMITED

MINUTE = 60.0
MOST_MINUTES = 60
"""One charge is settled for no more minutes of its rate: an upstream that tells of 10^15 tokens locks no key out for
ever. It is an hour, not less, so that a wide request, which may well spend what its key has for half of one, still pays
for all of it."""
_ROUNDING = 1e-6
"""Seconds that sums of floats may be off by; far less than one unit of any rate takes."""


@dataclass(frozen=True, slots=True)
class Charge:
    """So much of one rate was charged. until: when it will have been worked off, if nothing comes back before.

    returned: what had come back of the rate until then, in seconds.
    """

    what: Kind
    amount: int
    limit: int
    until: float
    returned: float


class Meters:
    """What one key has spent, of each kind; whatever the limits are, which come with each call."""

    __slots__ = ("_returned", "_until")

    def __init__(self) -> None:
        self._until: defaultdict[Kind, float] = defaultdict(lambda: -inf)
        self._returned: defaultdict[Kind, float] = defaultdict(float)

    def behind(self, what: Kind, now: float) -> float:
        """Seconds until nothing that was spent counts any more."""
        return max(0.0, self._until[what] - now)

    def wait(self, what: Kind, amount: int, limit: int, now: float) -> float:
        """Seconds until so much may be spent, which is at most the limit; 0 for now."""
        return wait_for(amount, limit, self.behind(what, now))

    def charge(self, what: Kind, amount: int, limit: int, now: float) -> Charge:
        """Count so much as spent, be there room for it or not."""
        until = self._until[what] = max(now, self._until[what]) + MINUTE * amount / limit
        return Charge(what, amount, limit, until, self._returned[what])

    def settle(self, charge: Charge, amount: int, now: float) -> None:
        """It was so much in truth; see MOST_MINUTES."""
        what, amount = charge.what, min(amount, MOST_MINUTES * charge.limit)
        if amount > charge.amount:
            self.charge(what, amount - charge.amount, charge.limit, now)
            return
        left = charge.until - (self._returned[what] - charge.returned) - now
        seconds = min(MINUTE * (charge.amount - amount) / charge.limit, max(0.0, left))
        self._until[what] -= seconds
        self._returned[what] += seconds

    def full(self, now: float) -> bool:
        """Whether nothing that was spent counts any more."""
        return all(until <= now for until in self._until.values())


def wait_for(amount: int, limit: int, behind: float) -> float:
    """Seconds until so much may be spent, 0 for now; what was spent before counts for `behind` seconds more."""
    seconds = behind + MINUTE * amount / limit - MINUTE
    return seconds if seconds > _ROUNDING else 0.0


def limits_of(ask: Ask) -> tuple[tuple[Kind, int, int], ...]:
    """Each rate that limits a request: its kind, what the request takes of it at first, the limit.

    A guess of tokens beyond the limit takes all of it; the rest is charged when it is known.
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
    """How far the key is with each rate that limits it."""
    if ask.rates is UNLIMITED:
        return ()
    return tuple(Level(what, limit, meters.behind(what, now)) for what, _, limit in limits_of(ask))
