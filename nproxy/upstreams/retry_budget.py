"""The retry budget: which share of recent calls may be retries, so that retries cannot make an overload worse."""

from __future__ import annotations

import time
from collections.abc import Callable

WINDOW_SECONDS = 10
FREE_PER_SECOND = 10


class RetryBudget:
    """Allows retries up to `share` of the calls of the last ten seconds, and ten a second in addition.

    Calls are counted per second in a ring buffer, so memory does not grow with the load. clock: a monotonic time in
    seconds.
    """

    __slots__ = ("_calls", "_clock", "_retries", "_seconds", "share")

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.share = share
        self._clock = clock
        self._seconds = [-1] * WINDOW_SECONDS  # which second each slot counts
        self._calls = [0] * WINDOW_SECONDS
        self._retries = [0] * WINDOW_SECONDS

    def count_call(self) -> None:
        """Count one upstream call, retries included."""
        self._calls[self._slot()] += 1

    def take(self) -> bool:
        """Take one retry from the budget; False if it is spent."""
        slot = self._slot()
        oldest = self._seconds[slot] - WINDOW_SECONDS
        live = [i for i, second in enumerate(self._seconds) if second > oldest]
        allowed = FREE_PER_SECOND * WINDOW_SECONDS + self.share * sum(self._calls[i] for i in live)
        if sum(self._retries[i] for i in live) + 1 > allowed:
            return False
        self._retries[slot] += 1
        return True

    def _slot(self) -> int:
        second = int(self._clock())
        slot = second % WINDOW_SECONDS
        if self._seconds[slot] != second:
            self._seconds[slot] = second
            self._calls[slot] = self._retries[slot] = 0
        return slot
