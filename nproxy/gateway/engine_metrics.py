"""The built-in engine's own metrics, as a part of the gateway's."""

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
"""How long its last report is used if it does not answer."""


class EngineMetrics:
    """The engine's metrics. up: set with each report to whether the engine answered. clock: in seconds.

    An engine under load may answer late. If its series then disappeared, graphs would have gaps and pending alerts
    would start anew, just when the series matter. So they are kept for a while, and `up` says that they are old.
    """

    def __init__(self, engine: Upstream, up: MaybeGauge, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._up = up
        self._clock = clock
        self._up.value = 0
        self._last: Report = {}
        self._at = -KEPT_SECONDS

    async def report(self) -> Report:
        """Return the engine's current metrics, or else its last ones; empty if these are too old."""
        current = report_of_text(await self._engine.documents.first("/metrics", ASK_SECONDS), ENGINE_PREFIX)
        self._up.value = int(bool(current))
        if current:
            self._last, self._at = current, self._clock()
        return self._last if self._clock() - self._at < KEPT_SECONDS else {}
