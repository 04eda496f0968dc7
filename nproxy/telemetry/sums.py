"""The metrics of several processes as one: counters and histograms add up, each gauge by its own rule.

A report is what one process has counted so far, as plain data. Reports name their rules, so that who adds them up need
not know the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Exemplar, Sample

from nproxy.telemetry.exemplars import newest
from nproxy.telemetry.formats import TEXT, Format

Across = Literal["sum", "present", "max", "min"]
"""What a metric of several processes is: the sum of theirs, the greatest or the least of them.

present: the sum, of what a living process has series of, by all labels but the last: what is counted may go for good,
as replicas do.
"""

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name and its labels."""

UNITS = ("seconds", "bytes")
"""Units that stand at the end of a metric's name."""


def _sum(one: float, other: float) -> float:
    return one + other


_FOLDS: Mapping[Across, Callable[[float, float], float]] = {
    "sum": _sum,
    "present": _sum,
    "max": max,
    "min": min,
}


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: what kind it is, what it says, how it adds up, its samples, and the exemplars of some of them."""

    kind: str
    text: str
    across: Across
    samples: Mapping[Series, float]
    exemplars: Mapping[Series, Exemplar] = field(default_factory=dict)


Report = Mapping[str, Family]
"""The metrics of a process, or of several, by their names."""


class Collects(Protocol):
    """A registry of prometheus_client, or what gives metrics as one does."""

    def collect(self) -> Iterable[Metric]: ...


def report(registry: Collects, across: Mapping[str, Across]) -> Report:
    """What the metrics of a registry say now. across: the rules of those that do not add up, by their names."""
    return {metric.name: _family(metric, across.get(metric.name, "sum")) for metric in registry.collect()}


def report_of_text(text: bytes, prefix: str) -> Report:
    """What another process has written in the text format, as far as its metrics begin so; nothing where it is none."""
    try:
        families = list(text_string_to_metric_families(text.decode()))
    except ValueError:
        return {}
    return {metric.name: _family(metric, "sum") for metric in families if metric.name.startswith(prefix)}


def _family(metric: Metric, across: Across) -> Family:
    samples, exemplars = {}, {}
    for sample in metric.samples:
        series = (sample.name, tuple(sample.labels.items()))
        samples[series] = sample.value
        if sample.exemplar is not None:
            exemplars[series] = sample.exemplar
    return Family(metric.type, metric.documentation, across, samples, exemplars)


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
    samples, exemplars = dict(one.samples), dict(one.exemplars)
    for series, value in other.samples.items():
        samples[series] = fold(samples[series], value) if series in samples else value
    for series, exemplar in other.exemplars.items():
        exemplars[series] = newest((exemplars.get(series), exemplar)) or exemplar
    return Family(one.kind, one.text, one.across, samples, exemplars)


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

    def over(self, living: Sequence[Report]) -> Report:
        """What the living say, and those that are gone have said."""
        self._gone = _present(self._gone, living)
        return add_up((self._gone, *living))


def _present(gone: Report, living: Sequence[Report]) -> Report:
    """Without the series of what none of the living has, where it may go for good."""

    def kept(name: str, family: Family) -> Family:
        if family.across != "present":
            return family
        there = {labels[:-1] for one in living if name in one for _, labels in one[name].samples}
        samples = {series: value for series, value in family.samples.items() if series[1][:-1] in there}
        return replace(family, samples=samples)

    return {name: kept(name, family) for name, family in gone.items()}


def exposition(one: Report, form: Format = TEXT) -> bytes:
    """What a scrape reads."""
    return form.write(_Told(one))


class _Told(CollectorRegistry):
    """A report as a registry."""

    def __init__(self, one: Report) -> None:
        super().__init__()
        self._report = one

    def collect(self) -> Iterable[Metric]:
        for name, family in self._report.items():
            metric = Metric(name, family.text, family.kind, next((u for u in UNITS if name.endswith(f"_{u}")), ""))
            metric.samples = [
                Sample(sample, dict(labels), value, exemplar=family.exemplars.get((sample, labels)))
                for (sample, labels), value in family.samples.items()
            ]
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
            [[*series, *exemplar] for series, exemplar in family.exemplars.items()],
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
            {_series(sample, labels): float(number) for sample, labels, number in samples},
            {
                _series(sample, labels): Exemplar(dict(trace), float(value), float(at))
                for sample, labels, trace, value, at in exemplars
            },
        )
        for name, kind, text, across, samples, exemplars in data
    }


def _series(sample: str, labels: Iterable[Sequence[str]]) -> Series:
    return sample, tuple((label, value) for label, value in labels)
