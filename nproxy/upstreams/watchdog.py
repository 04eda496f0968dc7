"""A deadline that moves often and passes rarely."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf


class Watchdog:
    """Calls `expire` once, when the deadline set last has passed, unless it was stopped.

    Moving the deadline is an assignment: the loop's timer is armed again only when it fires too early, so that
    a deadline per server-sent event costs next to nothing. `expired` says whether it has barked.
    """

    __slots__ = ("_deadline", "_expire", "_handle", "_loop", "expired")

    def __init__(self, expire: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._expire: Callable[[], None] | None = expire
        self._deadline = inf
        self._handle: asyncio.TimerHandle | None = None
        self.expired = False

    def watch(self, deadline: float) -> None:
        """Move the deadline to `deadline`, in the loop's time; infinity for none. Once stopped it does nothing."""
        self._deadline = deadline
        handle = self._handle
        if handle is None:
            if deadline < inf and self._expire is not None:
                self._handle = self._loop.call_at(deadline, self._check)
        elif deadline < handle.when():
            handle.cancel()
            self._handle = self._loop.call_at(deadline, self._check)

    def stop(self) -> None:
        """Watch no more, and let go of whom it would have called."""
        self._deadline, self._expire = inf, None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _check(self) -> None:
        self._handle = None
        if self._loop.time() + 0.001 < self._deadline:  # the loop's clock may fire a tick early
            self.watch(self._deadline)
        elif self._expire is not None:
            self.expired = True
            self._expire()
