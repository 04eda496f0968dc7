"""Rate-limited log lines, for events that outsiders can cause at any rate: at most one line per kind and minute."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

SECONDS = 60.0


class Seldom:
    """Writes to `log`, and counts the lines that it leaves out. clock: in seconds."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._told: dict[tuple[str, str], float] = {}
        self._untold: Counter[tuple[str, str]] = Counter()

    def tell(self, level: int, message: str, fields: Mapping[str, object], why: str = "") -> None:
        """Write a line, unless one with this message and `why` was written lately. Both come from a small set.

        The line has an extra field `untold`: how many of its kind were left out since the last one, if any were.
        """
        kind, now = (message, why), self._clock()
        if kind in self._told and now - self._told[kind] < SECONDS:
            self._untold[kind] += 1
            return
        self._told[kind] = now
        untold = self._untold.pop(kind, 0)
        line = {**({"why": why} if why else {}), **fields, **({"untold": untold} if untold else {})}
        self._log.log(level, message, extra={"fields": line})
