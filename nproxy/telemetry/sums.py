"""The metrics of several processes combined: counters and histograms are summed, each gauge has its own rule.

A report is what one process has counted so far, as plain data. Reports contain their rules, so that the process that
combines them need not know the metrics.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import orjson
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Exemplar, Sample

from nproxy.telemetry.exemplars import newest
from nproxy.telemetry.formats import TEXT, Format

Across = Literal["sum", "present", "max", "min"]
"""How a metric of several processes is combined: their sum, the largest or the smallest.

present: the sum. Series of processes that have ended count only while a living process has a series of the same
replica: what is counted may disappear for good, as replicas do."""

Labels = tuple[tuple[str, str], ...]
Series = tuple[str, Labels]
"""A sample's name and its labels."""

_OF_A_REPLICA = ("upstream", "replica")
"""Labels that say which replica a series is about."""

_LEVEL = 1  # of zlib: the fastest, which leaves a twentieth

UNITS = ("seconds", "bytes")
"""Units that may be the suffix of a metric's name."""


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
    """One metric: its type, its help text, its rule, its samples, and the exemplars of some of them."""

    kind: str
    text: str
    across: Across
    samples: Mapping[Series, float]
    exemplars: Mapping[Series, Exemplar] = field(default_factory=dict)


Report = Mapping[str, Family]
"""The metrics of one or several processes, by their names."""


class Collects(Protocol):
    """A registry of prometheus_client, or an object that gives metrics in the same way."""

    def collect(self) -> Iterable[Metric]:
        """Return its families."""
        ...


def report(registry: Collects, across: Mapping[str, Across]) -> Report:
    """Return the current metrics of a registry. across: the rules of metrics that are not summed, by name."""
    return {metric.name: _family(metric, across.get(metric.name, "sum")) for metric in registry.collect()}


def report_of_text(text: bytes, prefix: str) -> Report:
    """Parse another process's metrics in the text format, if their names have the prefix; empty if it is malformed."""
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
    """Combine reports; a metric or a series that only some reports have stays as it is."""
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
    """Return what remains of a process that has ended: its counters and histograms, not its gauges."""
    return {name: family for name, family in one.items() if family.kind != "gauge"}


class Totals:
    """Totals over processes that start and end: no counter decreases when one of them ends."""

    def __init__(self) -> None:
        self._gone: Report = {}

    def retire(self, last: Report) -> None:
        """Keep the counts of a process that has ended. last: its last report."""
        self._gone = add_up((self._gone, lasting(last)))

    def over(self, living: Sequence[Report]) -> Report:
        """Return the living processes' reports combined with the counts of those that have ended."""
        self._gone = _present(self._gone, living)
        return add_up((self._gone, *living))


class Continued:
    """The reports of one living process: what it has counted of a replica goes on if the replica leaves and returns.

    The process itself begins again from 0 then. In a sum with other processes, that would be a counter that goes back a
    little, of which Prometheus would take all that is left for new.
    """

    def __init__(self) -> None:
        self._last: Report = {}
        self._earlier: Report = {}

    def take(self, report: Report) -> Report:
        """Return the newest report with the counts of replicas that are in it again."""
        if not report:  # none could be read
            return report
        of_replicas = [name for name, family in report.items() if family.across == "present" and name in self._last]
        lost = {name: _more(self._last[name], report[name]) for name in of_replicas}
        self._earlier = _present(add_up((self._earlier, lost)), [report])
        self._last = report
        return add_up((report, self._earlier))


def _more(before: Family, now: Family) -> Family:
    """Return the series of a metric that were more before than now."""
    samples = {series: value for series, value in before.samples.items() if value > now.samples.get(series, 0.0)}
    return replace(before, samples=samples)


def _present(gone: Report, living: Sequence[Report]) -> Report:
    """Remove series of metrics with the rule `present` whose replica no living process has.

    They all stay while no living process has reported: all may have been killed at once.
    """
    counted = [family for one in living for family in one.values() if family.across == "present"]
    if not counted:
        return gone
    there = {_replica(labels) for family in counted for _, labels in family.samples}

    def kept(family: Family) -> Family:
        if family.across != "present":
            return family
        samples = {series: value for series, value in family.samples.items() if _replica(series[1]) in there}
        return replace(family, samples=samples)

    return {name: kept(family) for name, family in gone.items()}


def _replica(labels: Labels) -> Labels:
    return tuple(label for label in labels if label[0] in _OF_A_REPLICA)


def exposition(one: Report, form: Format = TEXT) -> bytes:
    """Return the bytes for a scrape."""
    return form.write(_Reported(one))


class _Reported(CollectorRegistry):
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


def packed(one: Report) -> str:
    """Return a report as text for another process: compressed, because thousands of models make tens of MiB.

    Numbers are written as strings, because JSON has no infinity.
    """
    data = [
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
    return b64encode(zlib.compress(orjson.dumps(data), _LEVEL)).decode("ascii")


def unpacked(text: str) -> Report:
    """Return the report that `packed` wrote. Raises ValueError or TypeError for other texts."""
    try:
        data: Sequence[Any] = orjson.loads(zlib.decompress(b64decode(text)))
    except zlib.error as error:
        raise ValueError(str(error)) from error
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
