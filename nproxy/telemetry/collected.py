"""Metrics that are looked up when they are told, and need not be there."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from nproxy.telemetry.logs import dropped_lines


class MaybeGauge(Collector):
    """A gauge without labels whose series is there only while there is something to tell: 0 would mean something.

    value: None where there is nothing.
    """

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self.value: float | None = None

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(self._name, self._text, value=self.value)


class DroppedLines(Collector):
    """Log lines that were not written: counted where they are dropped, which is below all metrics."""

    def collect(self) -> Iterable[Metric]:
        text = "Log lines that were dropped: too many waited, or their stream took none."
        yield CounterMetricFamily("nproxy_log_lines_dropped", text, value=dropped_lines())
