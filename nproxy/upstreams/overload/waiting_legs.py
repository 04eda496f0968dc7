"""The legs of one account that wait for capacity: in which order, and which of them is next. Pure, but for futures."""

from __future__ import annotations

import asyncio
from bisect import insort
from dataclasses import dataclass

from nproxy.upstreams.call_group import CallGroup, QueuePlace, QueueStats
from nproxy.upstreams.overload.call_attempt import CallAttempt
from nproxy.upstreams.overload.release_delay import FreedSlot


@dataclass(slots=True, eq=False)
class WaitingLeg:
    """future: done once the leg is admitted or gone. patience: runs until its request has waited long enough."""

    attempt: CallAttempt
    stats: QueueStats
    future: asyncio.Future[None]
    patience: asyncio.TimerHandle | None = None

    @property
    def place(self) -> QueuePlace:
        """Its request's place in the queue, for this leg."""
        return self.stats.places[self.attempt.leg]


class WaitingLegs(list[WaitingLeg]):
    """The legs in their order. Legs are added by `add` only.

    Requests take turns: a leg is queued behind as many legs of every other request as are before it of its own, so that
    one choice is not kept waiting by a hundred (start-time fair queueing: Goyal, Vin and Cheng, 1996).
    """

    def __init__(self) -> None:
        super().__init__()
        self._turn = 0  # of the leg that was admitted last
        self._arrived = 0  # legs

    def add(self, attempt: CallAttempt, stats: QueueStats) -> WaitingLeg:
        """Queue a leg. One that was admitted and refused gets the place it had."""
        if attempt.leg not in stats.places:
            self._arrived += 1
            last, _ = max(stats.places.values(), default=(0, 0))
            stats.places[attempt.leg] = max(self._turn, last) + 1, self._arrived
        leg = WaitingLeg(attempt, stats, asyncio.get_running_loop().create_future())
        insort(self, leg, key=lambda one: one.place)
        return leg

    def took_its_turn(self, leg: WaitingLeg) -> None:
        """Note that a leg was admitted."""
        self._turn = max(self._turn, leg.place[0])

    def first_of(self, group: CallGroup) -> WaitingLeg | None:
        """The first leg of a request that waits; None if none does."""
        return next((one for one in self if one.attempt.group is group), None)

    def legs_of(self, group: CallGroup) -> int:
        """How many legs of a request wait to be admitted."""
        return sum([one.attempt.group is group for one in self])

    def next(self, slot: FreedSlot | None, exclude: CallGroup | None, begun: int) -> WaitingLeg | None:
        """The first leg that does not yield to others; if all do, the first of them.

        slot: the freed one it gets, if any. A request that was just refused for this slot yields: another one finds out
        whether the slot comes later. exclude: no leg of this request. begun: how many calls of the account have begun.
        """
        yielding = None
        for leg in self:
            if leg.future.done() or leg.attempt.group is exclude:
                continue
            another = slot is None or slot.last_group is not leg.attempt.group
            if another and leg.stats.yields_until <= begun:
                return leg
            yielding = yielding or leg
        return yielding

    def next_to_probe(self) -> WaitingLeg | None:
        """The first of the legs whose requests have probed least."""
        able = (one for one in self if not one.future.done())
        return min(able, key=lambda one: one.stats.probe_refusals, default=None)

    def requests(self) -> int:
        """How many requests have legs that wait."""
        return len({one.attempt.group for one in self if not one.future.done()})

    def others_wait(self, group: CallGroup) -> bool:
        """Whether another request has legs that wait."""
        return any(one.attempt.group is not group and not one.future.done() for one in self)
