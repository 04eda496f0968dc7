"""What is observed once and told under several names: a histogram of many labels and bounds, and views of it.

A view leaves out labels and bounds. Its bounds are among those that are observed, so its buckets hold exactly what an
instrument of its own would hold, and nothing is observed twice to have another name. What is observed for every piece
of every stream must cost little: a series is a list of counts, where the library's has an object and a lock for each
bucket.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from math import inf
from typing import Literal

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from nproxy.telemetry.exemplars import Trace, newest

Labels = Mapping[str, str]


def as_they_are(labels: Labels) -> Labels | None:
    return labels


@dataclass(frozen=True, slots=True)
class View:
    """One name for what is observed.

    name: without `_total`. labels: those it has. bounds: of its buckets, without +Inf; those that are observed where it
    has none. tells: a histogram, or a counter of the observations or of what they add up to. labelled: its labels, and
    maybe more, from those that are observed; None where such an observation is not told under this name.
    """

    name: str
    text: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...] = ()
    tells: Literal["buckets", "count", "sum"] = "buckets"
    labelled: Callable[[Labels], Labels | None] = as_they_are


@dataclass(slots=True)
class _Observations:
    """counts: in and below each bucket, +Inf's last. exemplars: one for each bucket. total: what they add up to."""

    counts: list[float]
    exemplars: list[Exemplar | None]
    total: float

    def add(self, other: _Observations) -> None:
        self.counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
        self.exemplars = [newest(pair) for pair in zip(self.exemplars, other.exemplars, strict=True)]
        self.total += other.total


class Series:
    """What is observed with one set of labels: by one thread, whoever reads it."""

    __slots__ = ("_bounds", "_counts", "_exemplars", "_total", "labels")

    def __init__(self, labels: Labels, bounds: Sequence[float]) -> None:
        self.labels = labels
        self._bounds = bounds
        self._counts = [0] * len(bounds)  # in each bucket, without those below
        self._exemplars: list[Exemplar | None] = [None] * len(bounds)
        self._total = 0.0

    def observe(self, value: float, trace: Trace | None = None) -> None:
        """Count a value. trace: which one it belongs to, where that is recorded."""
        bucket = bisect_left(self._bounds, value)
        self._counts[bucket] += 1
        self._total += value
        if trace is not None:
            self._exemplars[bucket] = Exemplar(trace, value, time.time())

    def read(self) -> _Observations:
        """What was observed so far."""
        return _Observations([float(count) for count in accumulate(self._counts)], [*self._exemplars], self._total)


class Observed(Collector):
    """A histogram that is told by its views only. `at(*label values)` gives what to observe in.

    bounds: of its buckets, beside those that the views have. Raises ValueError for a view with other labels or bounds.
    """

    def __init__(self, labels: tuple[str, ...], bounds: Sequence[float], views: Sequence[View]) -> None:
        finite = {*bounds}.union(*(view.bounds for view in views))
        self._bounds = [*sorted(finite or {0.0}), inf]
        self._labels = labels
        self._series: list[Series] = []
        self.at: Callable[..., Series] = cache(self._new)
        self._views = views

    def _new(self, *values: str) -> Series:
        series = Series(dict(zip(self._labels, values, strict=True)), self._bounds)
        self._series.append(series)
        return series

    def collect(self) -> Iterator[Metric]:
        observed = [(series.labels, series.read()) for series in tuple(self._series)]
        for view in self._views:
            yield self._told(view, observed)

    def _told(self, view: View, observed: Iterable[tuple[Labels, _Observations]]) -> Metric:
        series: dict[tuple[str, ...], _Observations] = {}
        for labels, observations in observed:
            if (named := view.labelled(labels)) is None:
                continue
            key = tuple(named[name] for name in view.labels)
            if key in series:
                series[key].add(observations)
            else:
                series[key] = _Observations(observations.counts, observations.exemplars, observations.total)
        return self._histogram_of(view, series) if view.tells == "buckets" else _counter_of(view, series)

    def _histogram_of(self, view: View, series: Mapping[tuple[str, ...], _Observations]) -> Metric:
        family = HistogramMetricFamily(view.name, view.text, labels=view.labels)
        ends = [self._bounds.index(bound) + 1 for bound in (*(view.bounds or self._bounds[:-1]), inf)]
        for key, observations in series.items():
            buckets = [
                (_written(self._bounds[end - 1]), observations.counts[end - 1], exemplar)
                for begin, end in pairwise((0, *ends))
                for exemplar in (newest(observations.exemplars[begin:end]),)
            ]
            family.add_metric(key, buckets, observations.total)  # type: ignore[arg-type]  # None is no exemplar
        return family


def _written(bound: float) -> str:
    text: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
    return text


def _counter_of(view: View, series: Mapping[tuple[str, ...], _Observations]) -> Metric:
    family = CounterMetricFamily(view.name, view.text, labels=view.labels)
    for key, observations in series.items():
        family.add_metric(key, observations.counts[-1] if view.tells == "count" else observations.total)
    return family
