"""Reads Prometheus metrics of a running server."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


def metric(url: str, name: str, **labels: str) -> float:
    """The sum of all samples called `name` that carry these labels; LookupError where there is none."""
    found = [sample.value for sample in _samples(url, name) if labels.items() <= sample.labels.items()]
    if not found:
        raise LookupError(f"no {name}{labels} in the metrics of {url}")
    return sum(found)


def info(url: str, name: str) -> dict[str, str]:
    """The labels of the one sample called `name`; ValueError where there is another number of them."""
    [sample] = _samples(url, name)
    return dict(sample.labels)


def _samples(url: str, name: str) -> list[Sample]:
    text = httpx.get(f"{url}/metrics", timeout=5.0, verify=False, trust_env=False).raise_for_status().text
    families = text_string_to_metric_families(text)
    return [sample for family in families for sample in family.samples if sample.name == name]


def wait_for(condition: Callable[[], bool], *, seconds: float, what: str) -> float:
    """Ask until `condition` holds and return the seconds it took; AssertionError with `what` when the time is over.

    For state that only another process knows, where there is no event to wait on.
    """
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > seconds:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)
    return time.monotonic() - begun
