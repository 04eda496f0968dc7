"""Deadlines that move, as many as there are calls, under one timer of the event loop's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

_TICK = 0.001
"""Seconds that the loop's clock may be late by when a timer fires."""


class Watchdogs:
    """Those of one loop. A timer of its own for each would cost more than all else that a deadline does.

    The timer stands at the soonest deadline that there was when it was set; most have moved, or are no more, by then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._awake: set[Watchdog] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._at = inf

    def wake(self, watchdog: Watchdog) -> None:
        """See that it is looked at when its deadline has passed."""
        self._awake.add(watchdog)
        if watchdog.deadline < self._at:
            self._look_at(watchdog.deadline)

    def rest(self, watchdog: Watchdog) -> None:
        """Look at it no more."""
        self._awake.discard(watchdog)

    def _look_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = deadline
        self._timer = self.loop.call_at(deadline, self._look)

    def _look(self) -> None:
        self._timer, self._at = None, inf
        now = self.loop.time() + _TICK
        try:
            for watchdog in [one for one in self._awake if one.deadline <= now]:
                if watchdog.deadline <= now:  # still: whom another has called may have moved it
                    watchdog.bark()
        finally:
            soonest = min((one.deadline for one in self._awake), default=inf)
            if soonest < self._at:
                self._look_at(soonest)


class Watchdog:
    """Calls `expire` once, when the deadline set last has passed, unless it was stopped.

    Moving the deadline sets no timer, so that one for each server-sent event costs next to nothing. `expired` says
    whether it has barked.
    """

    __slots__ = ("_expire", "_others", "deadline", "expired")

    def __init__(self, others: Watchdogs, expire: Callable[[], None]) -> None:
        self._others = others
        self._expire: Callable[[], None] | None = expire
        self.deadline = inf
        self.expired = False

    def watch(self, deadline: float) -> None:
        """Move the deadline to `deadline`, in the loop's time; infinity for none. Once stopped it does nothing."""
        self.deadline = deadline
        if deadline < inf and self._expire is not None:
            self._others.wake(self)

    def stop(self) -> None:
        """Watch no more, and let go of whom it would have called."""
        self._expire = None
        self._others.rest(self)

    def bark(self) -> None:
        """Its deadline has passed."""
        expire = self._expire
        self.stop()
        if expire is not None:
            self.expired = True
            expire()
