"""Observations that are made once and exposed under several names: a histogram with many labels and bounds, and views.

A view leaves out labels and bounds. Its bounds are a subset of the observed ones, so its buckets hold exactly what a
separate instrument would hold, and no value is observed twice just to have another name. An observation for every piece
of every stream must be cheap: a series is a list of counts, while the library has an object and a lock for each bucket.
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
    """Return the labels."""
    return labels


@dataclass(frozen=True, slots=True)
class View:
    """One name under which observations are exposed."""

    name: str
    """Without `_total`."""
    text: str
    """The metric's help text."""
    labels: tuple[str, ...]
    """The label names."""
    bounds: tuple[float, ...] = ()
    """The upper bounds of the buckets, without +Inf; if empty, all observed bounds."""
    tells: Literal["buckets", "count", "sum"] = "buckets"
    """Whether it is a histogram, or a counter of the observations or of their sum."""
    labelled: Callable[[Labels], Labels | None] = as_they_are
    """Maps observed labels to this view's labels, and maybe more; returns None if such observations are not exposed
    under this name."""


@dataclass(slots=True)
class _Observations:
    """counts: cumulative, the last for +Inf. exemplars: one for each bucket. total: the sum of the values."""

    counts: list[float]
    exemplars: list[Exemplar | None]
    total: float

    def add(self, other: _Observations) -> None:
        self.counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
        self.exemplars = [newest(pair) for pair in zip(self.exemplars, other.exemplars, strict=True)]
        self.total += other.total


class Series:
    """The observations with one set of labels: changed by one thread, read by any.

    total: the sum of the values. If no view shows anything else of these labels, it is enough to add values to it.
    """

    __slots__ = ("_bounds", "_counts", "_exemplars", "labels", "total")

    def __init__(self, labels: Labels, bounds: Sequence[float]) -> None:
        self.labels = labels
        self._bounds = bounds
        self._counts = [0] * len(bounds)  # in each bucket, not cumulative
        self._exemplars: list[Exemplar | None] = [None] * len(bounds)
        self.total = 0.0

    def observe(self, value: float, trace: Trace | None = None) -> None:
        """Count a value. trace: the one it belongs to, if that is recorded."""
        bucket = bisect_left(self._bounds, value)
        self._counts[bucket] += 1
        self.total += value
        if trace is not None:
            self._exemplars[bucket] = Exemplar(trace, value, time.time())

    def read(self) -> _Observations:
        """Return the observations so far."""
        return _Observations([float(count) for count in accumulate(self._counts)], [*self._exemplars], self.total)


class Observed(Collector):
    """A histogram that is exposed only through its views. `at(*label values)` returns the series to observe in.

    bounds: of its buckets, besides those that the views have. `collect` raises KeyError for a view with other labels.
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
        """Like Collector.collect."""
        observed = [(series.labels, series.read()) for series in tuple(self._series)]
        for view in self._views:
            yield self._metric(view, observed)

    def _metric(self, view: View, observed: Iterable[tuple[Labels, _Observations]]) -> Metric:
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
            family.add_metric(key, buckets, observations.total)  # type: ignore[arg-type]  # None stands for no exemplar
        return family


def _written(bound: float) -> str:
    text: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
    return text


def _counter_of(view: View, series: Mapping[tuple[str, ...], _Observations]) -> Metric:
    family = CounterMetricFamily(view.name, view.text, labels=view.labels)
    for key, observations in series.items():
        family.add_metric(key, observations.counts[-1] if view.tells == "count" else observations.total)
    return family
