"""Metrics on their way between parent and workers: packed and unpacked in threads, beside the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from nproxy.telemetry.sums import Continued, Report, packed, unpacked

log = logging.getLogger("nproxy.workers")


async def pack(report: Awaitable[Report]) -> str | None:
    """Return a report as text once it is made; None while no thread can be started for either."""
    try:
        return await asyncio.to_thread(packed, await report)
    except RuntimeError:
        log.warning("the metrics cannot be reported now", exc_info=True)
        return None


class Reported:
    """What another process has reported last."""

    def __init__(self) -> None:
        self._text: str | None = None
        self._report: Report | None = {}
        self._continued = Continued()

    def take(self, text: str) -> None:
        """Note a newer report, as text."""
        self._text, self._report = text, None

    async def unpack(self) -> None:
        """Unpack the last report in a thread, so that `report` need not."""
        if self._report is None:
            text = self._text
            report = await asyncio.to_thread(_unpacked, text)
            if text is self._text:
                self._report = self._continued.take(report)

    def report(self) -> Report:
        """Return the last report; empty if there is none, or if it is invalid."""
        if self._report is None:
            self._report = self._continued.take(_unpacked(self._text))
        return self._report


def _unpacked(text: str | None) -> Report:
    try:
        return {} if text is None else unpacked(text)
    except (ValueError, TypeError):
        log.error("a worker's report is invalid")  # noqa: TRY400 - what it said is not shown
        return {}
