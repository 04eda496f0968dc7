"""Log lines when the gateway begins to refuse requests because it is full, and when that has ended.

A line for each refused request would say what the access log says already.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

QUIET_SECONDS = 60.0
"""Refusals have ended if there was none for so long."""
LOGGED = frozenset({"memory", "bodies", "queue_full", "timeout", "unanswered"})
"""Reasons that lie with the gateway. The others are rates of one key, requests that are too wide, and a shutdown."""

log = logging.getLogger("nproxy.gateway")


@dataclass(slots=True, eq=False)
class _Refusals:
    """Refusals for one reason. Times are in the loop's time."""

    first: float
    last: float
    count: int = 1


class RefusalLog:
    """Logs the begin and the end of refusals, for each reason. quiet: in seconds; see QUIET_SECONDS."""

    def __init__(self, loop: asyncio.AbstractEventLoop, quiet: float = QUIET_SECONDS) -> None:
        self._loop = loop
        self._quiet = quiet
        self._current: dict[str, _Refusals] = {}

    def note(self, reason: str) -> None:
        """Note that a request was refused. May be called in any thread."""
        if reason in LOGGED:
            self._loop.call_soon_threadsafe(self._note, reason, self._loop.time())

    def _note(self, reason: str, now: float) -> None:
        if (current := self._current.get(reason)) is not None:
            current.count += 1
            current.last = now
            return
        self._current[reason] = _Refusals(now, now)
        log.warning("requests are refused", extra={"fields": {"why": reason}})
        self._loop.call_later(self._quiet, self._check, reason)

    def _check(self, reason: str) -> None:
        """Log the end of the refusals if there was none lately; else check again when that may be so."""
        current = self._current[reason]
        rest = current.last + self._quiet - self._loop.time()
        if rest > 0:
            self._loop.call_later(rest, self._check, reason)
            return
        del self._current[reason]
        fields = {"why": reason, "refused": current.count, "seconds": round(current.last - current.first, 3)}
        log.info("no requests are refused any more", extra={"fields": fields})
