"""The breaker of one replica: after too many failed requests it gets none for a while, then one that tries it.

    CLOSED     calls go through; requests that fail are counted, in a row and as a share
    OPEN       no calls, until the wait is over
    HALF_OPEN  one request may try it (with all of its calls): a failure opens it again for twice as long

Failures are known at once and what goes well only at its end, which with long answers is much later: a request that is
being answered speaks for the replica until then. Else a few refusals would open it while it streams to a hundred.

The first event of a trial lets the others through again, so that nobody waits for the end of a long answer; but until
some answer has come whole, one failure is enough to open it again. Time is an argument: seconds that never go back.

Where there is no other replica to go to, an open breaker refuses requests only if this one says nothing at all: each
would wait in vain, and hold its permits meanwhile. One that answers, however badly, is asked on, since what failed may
be the work of one client or one endpoint, and to refuse all others would make an outage of it. nginx never takes out a
server that is alone, and Envoy sends on where too few are left.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf

from nproxy.config import Breaker as Settings

LONGEST_OPEN = 300.0
LAST_RESORT_SECONDS = 1.0
"""Where no other replica can be asked, one request in so many seconds tries this one, however long it is open for, and
whether or not those that try it already have been answered.

With others to go to, an open breaker costs nothing; without, each second is one in which nobody is served.
"""
FRESH_SECONDS = 5.0
"""A request is being answered while something has come for it within so many seconds."""
SLOTS = 10
"""The window is counted in so many parts."""


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Counts requests that failed and that went well. settings: None never opens.

    who: the request, any object that its calls share.
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
    )

    def __init__(self, settings: Settings | None) -> None:
        self._settings = settings
        self._opened_at: float | None = None
        self._open_for = 0.0
        self._trials: dict[object, int] = {}  # requests that try it, or tried it last, and the calls they have here
        self._tried_at = -inf  # when the last of them began
        self._silent = False  # whether the last request that failed was not answered at all
        self._spared_until = -inf  # where it is the last resort, nobody tries it before
        self._row = 0
        self._answered: dict[object, float] = {}  # when something came last for requests that have calls here
        self._periods = [-1] * SLOTS  # which part of all time each slot counts
        self._well = [0] * SLOTS
        self._failed = [0] * SLOTS

    def state(self, now: float) -> State:
        if self._opened_at is None:
            return State.CLOSED
        return State.HALF_OPEN if self._tried or self.wait(now) == 0 else State.OPEN

    @property
    def closed(self) -> bool:
        """Whether all calls go through."""
        return self._opened_at is None

    def shut(self, now: float) -> bool:
        """Whether it keeps requests away: not once the next one may try it, and nobody does."""
        return self._opened_at is not None and (self._tried or self.wait(now) > 0)

    @property
    def answers(self) -> bool:
        """Whether the last request that failed was answered: what is asked on where there is nothing else to ask."""
        return not self._silent

    def wait(self, now: float, *, last_resort: bool = False) -> float:
        """Seconds until a request may try it; 0 where one may, or is about to."""
        if self._opened_at is None:
            return 0.0
        if not last_resort:
            return max(0.0, self._opened_at + self._open_for - now)
        return max(0.0, self._spared_until - now, self._tried_at + LAST_RESORT_SECONDS - now if self._tried else 0.0)

    def admits(self, who: object, now: float, *, last_resort: bool = False) -> bool:
        """Whether a call of this request may be made. last_resort: there is no other replica to ask.

        Others than the request that tries it wait for its first event, but a last resort does not: that may be long.
        """
        if self._opened_at is None or self._trials.get(who):
            return True
        return (last_resort or not self._tried) and self.wait(now, last_resort=last_resort) == 0

    def called(self, who: object, now: float) -> None:
        """Note that a call which was admitted is made: while it is not closed, its request is a trial."""
        if self._opened_at is None:
            return
        if who not in self._trials:
            self._trials = {other: calls for other, calls in self._trials.items() if calls}
            self._tried_at = now
        self._trials[who] = self._trials.get(who, 0) + 1

    def left(self, who: object) -> None:
        """Note that a call is over: a trial that has none left and came to no verdict lets another request try."""
        self._answered.pop(who, None)  # its other calls will show themselves again
        if self._trials.get(who):
            self._trials[who] -= 1

    def spoke(self, who: object, now: float) -> bool:
        """Note an event of an answer; True where the breaker closed by it."""
        self._answered[who] = now
        if self._opened_at is None or who not in self._trials:
            return False
        self._close(row=self._patience - 1)
        return True

    def relent(self) -> None:
        """Let a request try it at once: something else says that it is back."""
        if self._opened_at is not None:
            self._open_for = 0.0
            self._spared_until = -inf

    def went_well(self, now: float) -> None:
        """Count a request whose answer came whole."""
        self._row = 0
        self._open_for = 0.0
        if self._opened_at is not None:
            self._close(row=0)
        self._well[self._slot(now)] += 1

    def failed(self, who: object, now: float, *, silent: bool = False) -> bool:
        """Count a request that failed; True where it opened. While it is not closed, only a trial says anything.

        silent: it was not answered at all. A last resort that fails before the wait is over makes that no longer.
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
        """Whether a request that tries it has calls here."""
        return any(self._trials.values())

    @property
    def _patience(self) -> int:
        return 1 if self._settings is None else self._settings.in_a_row

    def _too_many(self, now: float, answered: int) -> bool:
        settings = self._settings
        if settings is None:
            return False
        oldest = self._period(now) - SLOTS
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
        self._periods = [-1] * SLOTS

    def _period(self, now: float) -> int:
        window = inf if self._settings is None else self._settings.window
        return int(now * SLOTS / window)

    def _slot(self, now: float) -> int:
        period = self._period(now)
        slot = period % SLOTS
        if self._periods[slot] != period:
            self._periods[slot] = period
            self._well[slot] = self._failed[slot] = 0
        return slot
