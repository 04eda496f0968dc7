"""How long a request waits for capacity while nothing of it is answered. Then it probes, and is told the result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nproxy.upstreams.call_group import CallGroup, QueueStats
from nproxy.upstreams.overload.leg_admission import LegAdmission
from nproxy.upstreams.overload.waiting_legs import WaitingLeg
from nproxy.upstreams.timers import ROUNDING

AGAIN_SECONDS = 2.0
"""How soon a leg that is out of patience, but for its request's other legs, is looked at again."""
NEXT_SECONDS = 0.05
"""How soon after one leg was told of its refusal the next one of the same request probes, if it still waits."""


class Patience:
    """The patience of the requests of one account. seconds: how many each has, which may change at any time."""

    __slots__ = ("_admission", "_clock", "seconds")

    def __init__(self, admission: LegAdmission, seconds: Callable[[], float], clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._admission = admission
        self._clock = clock

    def seconds_left(self, group: CallGroup) -> float:
        """Seconds that a request goes on waiting while nothing of it is answered."""
        now = self._clock()
        since = None if group.queue_stats is None else group.queue_stats.waiting_since
        return (since or now) + self.seconds() - now

    def begin(self, waiter: WaitingLeg) -> None:
        """A leg begins to wait."""
        waiter.stats.waiting_since = waiter.stats.waiting_since or self._clock()
        waiter.stats.waiting += 1
        self._look_after(waiter, self.seconds_left(waiter.attempt.group))

    def end(self, waiter: WaitingLeg) -> None:
        """It no longer waits."""
        waiter.stats.waiting -= 1
        self._stop(waiter)

    def renew(self, stats: QueueStats, now: float) -> None:
        """A call of the request is over that was not refused: it waits anew, if any of its legs does."""
        stats.waiting_since = now if stats.waiting else None

    def told(self, group: CallGroup) -> None:
        """A leg of the request is told of its refusal. If patience is over, its other legs are told soon, too."""
        if self.seconds_left(group) <= ROUNDING and (waiter := self._admission.waiting.first_of(group)) is not None:
            self._look_after(waiter, NEXT_SECONDS)

    def _look_after(self, waiter: WaitingLeg, seconds: float) -> None:
        self._stop(waiter)
        waiter.patience = asyncio.get_running_loop().call_later(seconds, self._may_be_over, waiter)

    def _stop(self, waiter: WaitingLeg) -> None:
        if waiter.patience is not None:
            waiter.patience.cancel()

    def _may_be_over(self, waiter: WaitingLeg) -> None:
        """A request without an answer does not wait for ever: the first of its legs probes."""
        waiting = self._admission.waiting
        if waiter not in waiting or waiter.future.done():
            return
        if (left := self.seconds_left(waiter.attempt.group)) > ROUNDING:
            self._look_after(waiter, left)
        elif self._others_called(waiter):
            self._look_after(waiter, AGAIN_SECONDS)
        else:
            self._admission.admit(waiter, "probe")

    def _others_called(self, waiter: WaitingLeg) -> bool:
        """Whether another leg of the request goes first, or its call is in flight, or is about to be: then it was
        admitted, perhaps in this turn of the event loop, and counts as waiting until its task goes on.
        """
        group, waiting = waiter.attempt.group, self._admission.waiting
        if group.others_in_flight(waiter.attempt.leg) or waiter is not waiting.first_of(group):
            return True
        return waiter.stats.waiting > waiting.legs_of(group)
