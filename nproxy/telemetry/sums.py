"""The metrics of several processes as one: counters and histograms add up, each gauge by its own rule.

A report is what one process has counted so far, as plain data. Reports name their rules, so that who adds them up need
not know the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from prometheus_client import Metric, generate_latest
from prometheus_client.samples import Sample

Across = Literal["sum", "max", "min"]
"""What a gauge of several processes is: the sum of theirs, the greatest or the least of them."""

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name and its labels."""

_FOLDS: Mapping[Across, Callable[[float, float], float]] = {
    "sum": lambda one, other: one + other,
    "max": max,
    "min": min,
}


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: what kind it is, what it says, how it adds up, and its samples."""

    kind: str
    text: str
    across: Across
    samples: Mapping[Series, float]


Report = Mapping[str, Family]
"""The metrics of a process, or of several, by their names."""


class Collects(Protocol):
    """A registry of prometheus_client, or what gives metrics as one does."""

    def collect(self) -> Iterable[Metric]: ...


def report(registry: Collects, across: Mapping[str, Across]) -> Report:
    """What the metrics of a registry say now. across: the rules of its gauges, by their names."""
    return {
        metric.name: Family(
            metric.type,
            metric.documentation,
            across.get(metric.name, "sum"),
            {(sample.name, tuple(sample.labels.items())): sample.value for sample in metric.samples},
        )
        for metric in registry.collect()
    }


def add_up(reports: Iterable[Report]) -> Report:
    """All of them as one; a metric or a series that only some have is as they say."""
    families: dict[str, Family] = {}
    for one in reports:
        for name, family in one.items():
            there = families.get(name)
            families[name] = family if there is None else _folded(there, family)
    return families


def _folded(one: Family, other: Family) -> Family:
    fold = _FOLDS[one.across]
    samples = dict(one.samples)
    for series, value in other.samples.items():
        samples[series] = fold(samples[series], value) if series in samples else value
    return Family(one.kind, one.text, one.across, samples)


def lasting(one: Report) -> Report:
    """What a process that is gone leaves behind: what it counted, not how it stood."""
    return {name: family for name, family in one.items() if family.kind != "gauge"}


class Totals:
    """Sums over processes that come and go: no counter goes back when one of them ends."""

    def __init__(self) -> None:
        self._gone: Report = {}

    def retire(self, last: Report) -> None:
        """Keep what a process had counted; it says no more."""
        self._gone = add_up((self._gone, lasting(last)))

    def over(self, living: Iterable[Report]) -> Report:
        """What the living say, and those that are gone have said."""
        return add_up((self._gone, *living))


def exposition(one: Report) -> bytes:
    """The Prometheus text format."""
    return generate_latest(_Told(one))


class _Told:
    def __init__(self, one: Report) -> None:
        self._report = one

    def collect(self) -> Iterable[Metric]:
        for name, family in self._report.items():
            metric = Metric(name, family.text, family.kind)
            metric.samples = [Sample(sample, dict(labels), value) for (sample, labels), value in family.samples.items()]
            yield metric


def as_data(one: Report) -> list[Any]:
    """A report as plain data that JSON can hold; numbers are written out, for JSON has no infinity."""
    return [
        [
            name,
            family.kind,
            family.text,
            family.across,
            [[*series, repr(value)] for series, value in family.samples.items()],
        ]
        for name, family in one.items()
    ]


def from_data(data: Sequence[Any]) -> Report:
    """The report that `as_data` wrote. Raises ValueError or TypeError for what it did not write."""
    return {
        name: Family(
            kind,
            text,
            across,
            {
                (sample, tuple((label, value) for label, value in labels)): float(number)
                for sample, labels, number in samples
            },
        )
        for name, kind, text, across, samples in data
    }
