from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from nproxy.telemetry.counted import Counted


def test_a_counter_is_told_as_the_library_tells_its_own() -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    own = Counted("c", "Text.", ("a", "b"), CounterMetricFamily)
    ours.register(own)
    other = Counter("c", "Text.", ("a", "b"), registry=theirs)
    assert generate_latest(ours) == generate_latest(theirs)  # neither has a series yet
    for values, amount in ((("x", 'quoted "y"'), 1), (("x", "z"), 2.5), (("x", "z"), 4)):
        own.at(*values).value += amount
        other.labels(*values).inc(amount)
    own.at("never", "counted")
    other.labels("never", "counted")
    assert generate_latest(ours) == generate_latest(theirs)


def test_a_gauge_is_told_as_the_library_tells_its_own() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    own = Counted("g", "Text.", ("a",), GaugeMetricFamily)
    ours.register(own)
    other = Gauge("g", "Text.", ("a",), registry=theirs)
    own.at("x").value += 2
    own.at("x").value -= 1
    other.labels("x").inc()
    assert generate_latest(ours) == generate_latest(theirs)


def test_the_same_labels_are_the_same_series() -> None:
    counted = Counted("c", "Text.", ("a",), CounterMetricFamily)
    assert counted.at("x") is counted.at("x")
    assert counted.at("x") is not counted.at("y")


@pytest.mark.parametrize("values", [(), ("x", "y")])
def test_other_labels_are_refused(values: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="has the labels a"):
        Counted("c", "Text.", ("a",), CounterMetricFamily).at(*values)
