"""Metrics whose values are looked up at collection, and which may be absent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from nproxy.telemetry.logs import dropped_lines


class MaybeGauge(Collector):
    """A gauge without labels whose series exists only while it has a value, because 0 would be a value too.

    value: None if there is none.
    """

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self.value: float | None = None

    def collect(self) -> Iterable[Metric]:
        """Like Collector.collect."""
        yield GaugeMetricFamily(self._name, self._text, value=self.value)


class Table(Collector):
    """A metric whose series are replaced all at once: one assignment, however many there are.

    values: by label values.
    """

    def __init__(
        self, name: str, text: str, labels: tuple[str, ...], family: type[CounterMetricFamily | GaugeMetricFamily]
    ) -> None:
        self._name, self._text, self._labels, self._family = name, text, labels, family
        self.values: Mapping[tuple[str, ...], float] = {}

    def collect(self) -> Iterable[Metric]:
        """Like Collector.collect."""
        family = self._family(self._name, self._text, labels=self._labels)
        for labels, value in self.values.items():
            family.add_metric(labels, float(value))  # a report's JSON has no true and false
        yield family


class DroppedLines(Collector):
    """Log lines that were not written: counted in the log writer, which is below all metrics."""

    def collect(self) -> Iterable[Metric]:
        """Like Collector.collect."""
        text = "Log lines dropped because too many waited or the output stream was blocked."
        yield CounterMetricFamily("nproxy_log_lines_dropped", text, value=dropped_lines())
