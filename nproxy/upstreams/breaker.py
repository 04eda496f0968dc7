"""The circuit breaker of one replica: after too many failed requests it gets none for a while, then one that tries it.

    CLOSED     calls go through; failed requests are counted, in a row and as a share
    OPEN       no calls, until the wait is over
    HALF_OPEN  one request may try the replica (with all of its calls); if it fails: OPEN again, for twice as long

A failure is known at once. A success is known only at the end of an answer, which is much later if answers are long. So
a request that is being answered counts in favour of the replica until then. Otherwise a few refusals would open the
breaker while the replica streams to a hundred clients.

The first event of a trial closes the breaker, so that no other request waits for the end of a long answer. But until
some answer has come whole, one failure is enough to open it again. All times are arguments: seconds of a monotonic
clock.

If there is no other replica to go to, an open breaker refuses requests only if this replica does not answer at all:
each of them would wait in vain, and hold its permits meanwhile. A replica that answers, however badly, is still called,
because the failures may be the work of one client or one endpoint, and to refuse all other requests would turn them
into an outage. nginx never takes out a server that is alone, and Envoy keeps sending if too few are left.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf

from nproxy.config import Breaker as Settings

LONGEST_OPEN = 300.0
LAST_RESORT_SECONDS = 1.0
"""If no other replica can be called, one request in so many seconds tries this one. This holds however long the breaker
is still open for, and whether or not earlier trials have been answered.

If there are others to go to, an open breaker costs nothing. If not, each second is one in which no client is served.
"""
FRESH_SECONDS = 5.0
"""A request counts as being answered if something came for it within the last so many seconds."""
SLOTS = 10
"""Number of slots in which the window is counted."""
_LONG_AGO = -SLOTS
"""A period that is in no window, however early it is by the clock."""


class State(StrEnum):
    """A breaker's state, as metrics and /status show it."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Counts the requests to one replica that failed and that succeeded. settings: None if it never opens.

    who: in all methods the request, any object that its calls share.
    """

    __slots__ = (
        "_answered",
        "_failed",
        "_open_for",
        "_opened_at",
        "_periods",
        "_row",
        "_settings",
        "_silent",
        "_spared_until",
        "_trials",
        "_tried_at",
        "_well",
        "_window",
    )

    def __init__(self, settings: Settings | None) -> None:
        self._settings = settings
        self._window = inf if settings is None else settings.window
        self._opened_at: float | None = None
        self._open_for = 0.0
        self._trials: dict[object, int] = {}  # requests that try the replica, or were the last to, and their calls here
        self._tried_at = -inf  # when the last of them began
        self._silent = False  # whether the last request that failed got no answer at all
        self._spared_until = -inf  # if it is the last resort, no request tries it before this time
        self._row = 0
        self._answered: dict[object, float] = {}  # requests that have calls here, and when something came for them last
        self._periods = [_LONG_AGO] * SLOTS  # which period each slot counts
        self._well = [0] * SLOTS
        self._failed = [0] * SLOTS

    def state(self, now: float) -> State:
        """Return the state at a time, in monotonic seconds."""
        if self._opened_at is None:
            return State.CLOSED
        return State.HALF_OPEN if self._tried or self.wait(now) == 0 else State.OPEN

    @property
    def closed(self) -> bool:
        """Whether all calls go through."""
        return self._opened_at is None

    def shut(self, now: float) -> bool:
        """Whether it refuses requests: it is not closed, and its wait is not over or a request tries the replica."""
        return self._opened_at is not None and (self._tried or self.wait(now) > 0)

    @property
    def answers(self) -> bool:
        """Whether the last failed request was answered. Such a replica is still called if there is no other."""
        return not self._silent

    def wait(self, now: float, *, last_resort: bool = False) -> float:
        """Seconds until a request may try the replica; 0 if the wait is over."""
        if self._opened_at is None:
            return 0.0
        if not last_resort:
            return max(0.0, self._opened_at + self._open_for - now)
        return max(0.0, self._spared_until - now, self._tried_at + LAST_RESORT_SECONDS - now if self._tried else 0.0)

    def admits(self, who: object, now: float, *, last_resort: bool = False) -> bool:
        """Whether a call of this request may be made. last_resort: there is no other replica to call.

        Other requests wait for the first event of the trial. At a last resort they do not, because that may take long.
        """
        if self._opened_at is None or self._trials.get(who):
            return True
        return (last_resort or not self._tried) and self.wait(now, last_resort=last_resort) == 0

    def called(self, who: object, now: float) -> None:
        """Note that an admitted call begins. While the breaker is not closed, its request is a trial."""
        if self._opened_at is None:
            return
        if who not in self._trials:
            self._trials = {other: calls for other, calls in self._trials.items() if calls}
            self._tried_at = now
        self._trials[who] = self._trials.get(who, 0) + 1

    def call_over(self, who: object) -> None:
        """Note that a call is over. Once a trial has no calls left and gave no result, another request may try."""
        self._answered.pop(who, None)  # if the request has other calls here, their next events add it again
        if self._trials.get(who):
            self._trials[who] -= 1

    def spoke(self, who: object, now: float) -> bool:
        """Note an event of an answer; True if the breaker closed by it."""
        self._answered[who] = now
        if self._opened_at is None or who not in self._trials:
            return False
        self._close(row=self._patience - 1)
        return True

    def relent(self) -> None:
        """Let a request try the replica at once, because a health check says that it is back."""
        if self._opened_at is not None:
            self._open_for = 0.0
            self._spared_until = -inf

    def went_well(self, now: float) -> bool:
        """Count a request that was answered whole; True if the breaker closed by it."""
        self._row = 0
        self._open_for = 0.0
        closes = self._opened_at is not None
        if closes:
            self._close(row=0)
        self._well[self._slot(now)] += 1
        return closes

    def failed(self, who: object, now: float, *, silent: bool = False) -> bool:
        """Count a request that failed; True if the breaker opened. While it is not closed, only trials count.

        silent: it got no answer at all. If a last resort fails before the wait is over, the wait does not become
        longer.
        """
        if self._settings is None:
            return False
        if self._opened_at is None:
            self._row += 1
            self._failed[self._slot(now)] += 1
            self._answered.pop(who, None)
            answered = sum(now - at < FRESH_SECONDS for at in self._answered.values())
            if (self._row < self._settings.in_a_row or answered) and not self._too_many(now, answered):
                return False
        elif self._trials.pop(who, None) is None:
            return False
        opens = self.wait(now) == 0
        if opens:
            self._open(now)
        self._silent = silent
        self._spared_until = now + min(self._open_for, LAST_RESORT_SECONDS)
        return opens

    @property
    def _tried(self) -> bool:
        """Whether a request that tries the replica has calls here."""
        return any(self._trials.values())

    @property
    def _patience(self) -> int:
        return 1 if self._settings is None else self._settings.in_a_row

    def _too_many(self, now: float, answered: int) -> bool:
        settings = self._settings
        if settings is None:
            return False
        oldest = self._periods[self._slot(now)] - SLOTS
        live = [slot for slot, period in enumerate(self._periods) if period > oldest]
        failed = sum(self._failed[slot] for slot in live)
        requests = failed + sum(self._well[slot] for slot in live) + answered
        return requests >= settings.of and failed >= settings.ratio * requests

    def _open(self, now: float) -> None:
        first = 0.0 if self._settings is None else self._settings.open
        self._open_for = min(max(first, 2 * self._open_for), max(first, LONGEST_OPEN))
        self._opened_at = now

    def _close(self, row: int) -> None:
        self._opened_at = None
        self._trials.clear()
        self._row = row
        self._periods = [_LONG_AGO] * SLOTS

    def _slot(self, now: float) -> int:
        period = int(now * SLOTS / self._window)
        slot = period % SLOTS
        if self._periods[slot] != period:
            self._periods[slot] = period
            self._well[slot] = self._failed[slot] = 0
        return slot
