"""Counters that every request changes: exposed like the library's counters and gauges, but as cheap as an addition.

The library's take a lock each time, because any thread may count in them. These are only for counting in the event
loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


class Count:
    """One series: its `value` is changed by one thread, and read by any."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Counted(Collector):
    """A counter, or a gauge, with labels. `at(*label values)` returns the series to count in.

    name: without `_total`. family: whether it is exposed as a counter or as a gauge.
    """

    def __init__(
        self, name: str, text: str, labels: tuple[str, ...], family: type[CounterMetricFamily | GaugeMetricFamily]
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._family = family
        self._counts: list[tuple[tuple[str, ...], Count]] = []
        self.at: Callable[..., Count] = cache(self._new)

    def _new(self, *values: str) -> Count:
        if len(values) != len(self._labels):
            raise ValueError(f"{self._name} has the labels {', '.join(self._labels)}")
        count = Count()
        self._counts.append((values, count))
        return count

    def collect(self) -> Iterator[Metric]:
        """Like Collector.collect."""
        family = self._family(self._name, self._text, labels=self._labels)
        for values, count in tuple(self._counts):
            family.add_metric(values, count.value)
        yield family
