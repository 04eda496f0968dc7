"""What the built-in engine tells of itself, as a part of the gateway's metrics."""

from __future__ import annotations

import time
from collections.abc import Callable

from nproxy.telemetry.collected import MaybeGauge
from nproxy.telemetry.metrics import ENGINE_PREFIX
from nproxy.telemetry.sums import Report, report_of_text
from nproxy.upstreams.upstream import Upstream

ASK_SECONDS = 2.0
"""How long the engine may take to answer a scrape."""
KEPT_SECONDS = 60.0
"""How long its last word stands for it where it does not answer."""


class EngineMetrics:
    """The engine's metrics. up: set to whether it told them itself, with each report. clock: in seconds.

    An engine under load may be late once. Were its series to leave with that, graphs would have holes and alerts begin
    to wait anew, just when there is something to see. They stay for a while, and `up` says that they are old.
    """

    def __init__(self, engine: Upstream, up: MaybeGauge, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._up = up
        self._clock = clock
        self._up.value = 0
        self._last: Report = {}
        self._at = -KEPT_SECONDS

    async def report(self) -> Report:
        """What it says now, or said last; nothing where that is too long ago."""
        told = report_of_text(await self._engine.documents.first("/metrics", ASK_SECONDS), ENGINE_PREFIX)
        self._up.value = int(bool(told))
        if told:
            self._last, self._at = told, self._clock()
        return self._last if self._clock() - self._at < KEPT_SECONDS else {}
