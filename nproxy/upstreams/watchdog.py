"""A deadline that moves often and passes rarely."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from types import TracebackType
from typing import Self


class Watchdog:
    """Calls `expire` once, when the deadline set last has passed.

    Moving the deadline is an assignment: the loop's timer is armed again only when it fires too early, so that
    a deadline per server-sent event costs next to nothing. `expired` says whether it has barked.
    """

    __slots__ = ("_deadline", "_expire", "_handle", "_loop", "_over", "expired")

    def __init__(self, expire: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._expire = expire
        self._deadline = inf
        self._handle: asyncio.TimerHandle | None = None
        self._over = False
        self.expired = False

    def watch(self, deadline: float) -> None:
        """Move the deadline to `deadline`, in the loop's time; infinity for none. Behind the block it does nothing."""
        self._deadline = deadline
        handle = self._handle
        if handle is None:
            if deadline < inf and not self._over:
                self._handle = self._loop.call_at(deadline, self._check)
        elif deadline < handle.when():
            handle.cancel()
            self._handle = self._loop.call_at(deadline, self._check)

    def _check(self) -> None:
        self._handle = None
        if self._loop.time() + 0.001 >= self._deadline:  # the loop's clock may fire a tick early
            self.expired = True
            self._expire()
        else:
            self.watch(self._deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deadline, self._over = inf, True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
