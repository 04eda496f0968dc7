"""Moving deadlines for any number of calls, with one timer of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

_TICK = 0.001
"""A timer may fire so many seconds before its deadline, by the loop's clock."""


class Watchdogs:
    """All watchdogs of one event loop. A timer for each would cost more than everything else that a deadline does.

    awake: those that were not stopped. next: when the timer fires. It is set to the soonest deadline at that time. When
    it fires, most deadlines have moved or are gone.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.awake: set[Watchdog] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.next = inf

    def look_at(self, deadline: float) -> None:
        """Look for deadlines that have passed at this time, which is sooner than `next`."""
        if self._timer is not None:
            self._timer.cancel()
        self.next = deadline
        self._timer = self.loop.call_at(deadline, self._look)

    def _look(self) -> None:
        self._timer, self.next = None, inf
        now = self.loop.time() + _TICK
        try:
            for watchdog in [one for one in self.awake if one.deadline <= now]:
                if watchdog.deadline <= now:  # checked again: a callback called before may have moved it
                    watchdog.bark()
        finally:
            soonest = min((one.deadline for one in self.awake), default=inf)
            if soonest < self.next:
                self.look_at(soonest)


class Watchdog:
    """Calls `expire` once when the last set deadline has passed, unless it was stopped.

    Moving the deadline sets no timer, so one for each server-sent event costs next to nothing. expired: whether
    `expire` was called.
    """

    __slots__ = ("_expire", "_others", "deadline", "expired")

    def __init__(self, others: Watchdogs, expire: Callable[[], None]) -> None:
        self._others = others
        self._expire: Callable[[], None] | None = expire
        self.deadline = inf
        self.expired = False
        others.awake.add(self)

    def watch(self, deadline: float) -> None:
        """Set the deadline, in the loop's time; infinity for none. Has no effect once the watchdog is stopped."""
        self.deadline = deadline
        if deadline < self._others.next and self._expire is not None:
            self._others.look_at(deadline)

    def stop(self) -> None:
        """Stop watching, and drop the reference to the callback."""
        self._expire = None
        self._others.awake.discard(self)

    def bark(self) -> None:
        """Call `expire`, because the deadline has passed."""
        expire = self._expire
        self.stop()
        if expire is not None:
            self.expired = True
            expire()
