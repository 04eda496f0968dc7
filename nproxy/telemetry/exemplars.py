"""Exemplars: the trace that an observation belongs to, so that a slow bucket leads to a request that was slow."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.samples import Exemplar

Trace = dict[str, str]
"""The labels of an exemplar: the id of a recorded trace. Traces that are not recorded cannot be looked up."""


def newest(exemplars: Iterable[Exemplar | None]) -> Exemplar | None:
    """Return the exemplar that was observed last, None if there is none."""
    return max((one for one in exemplars if one is not None), key=_observed_at, default=None)


def _observed_at(exemplar: Exemplar) -> float:
    return 0.0 if exemplar.timestamp is None else float(exemplar.timestamp)
