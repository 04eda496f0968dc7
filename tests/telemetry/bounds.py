"""Which values labels may have, according to the table in docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from docs.generate.metrics import domain
from nproxy.telemetry.sums import Report

Labelled = tuple[str, Iterable[tuple[str, str]]]
"""A metric's name, and the labels of one of its samples."""


def of_report(report: Report) -> Iterator[Labelled]:
    for metric, family in report.items():
        for _, labels in family.samples:
            yield metric, labels


def strays(
    samples: Iterable[Labelled], names: Collection[str], replicas: Collection[str]
) -> list[tuple[str, str, str]]:
    """Return (metric, label, value) of every value that the table does not allow.

    names: names in the configuration and in the upstreams' model lists.
    """
    return sorted(
        {
            (metric, label, value)
            for metric, labels in samples
            for label, value in labels
            if label != "le" and not _is_given(metric, label, value, names, replicas)
        }
    )


def _is_given(metric: str, label: str, value: str, names: Collection[str], replicas: Collection[str]) -> bool:
    told = domain(metric, label)
    if "values" in told:
        return value in told["values"]
    match told["from"]:
        case "from the configuration":
            return value in ("", "other", *names)
        case "of the replicas":
            return value in replicas
        case "HTTP statuses":
            return value == "" or (len(value) == 3 and value.isdecimal())
        case _:
            return label == "version"
