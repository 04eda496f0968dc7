"""Views hold what instruments of their own would hold: the same numbers, whatever labels and bounds they leave out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.samples import Exemplar

from nproxy.telemetry.observed import Labels, Observed, View

FINE = (0.1, 0.5, 2.0)
COARSE = (0.5, 3.0)


def one_of_two(labels: Labels) -> Labels | None:
    return None if labels["b"] == "hidden" else labels


def observed() -> Observed:
    views = (
        View("fine", "F.", ("a", "b"), FINE),
        View("coarse", "C.", ("a",), COARSE),
        View("some", "S.", ("a",), COARSE, labelled=one_of_two),
        View("times", "T.", ("b",), tells="count"),
        View("total", "T.", ("a",), tells="sum"),
    )
    return Observed(("a", "b"), (), views)


def families(one: Observed) -> dict[str, Metric]:
    return {family.name: family for family in one.collect()}


values = st.tuples(st.sampled_from(["x", "y"]), st.sampled_from(["told", "hidden"]), st.integers(0, 40))


@given(st.lists(values, max_size=30))
def test_views_equal_instruments_of_their_own(seen: list[tuple[str, str, int]]) -> None:
    one, registry = observed(), CollectorRegistry()
    fine = Histogram("fine", "F.", ["a", "b"], buckets=FINE, registry=registry)
    coarse = Histogram("coarse", "C.", ["a"], buckets=COARSE, registry=registry)
    some = Histogram("some", "S.", ["a"], buckets=COARSE, registry=registry)
    for a, b, eighths in seen:
        value = eighths / 8  # adds up exactly, in any order
        one.at(a, b).observe(value)
        fine.labels(a, b).observe(value)
        coarse.labels(a).observe(value)
        if b == "told":
            some.labels(a).observe(value)
    views = CollectorRegistry()
    views.register(one)
    told = generate_latest(views).decode()
    apart = generate_latest(registry).decode()
    histograms = told[: told.index("# HELP times_total")].splitlines()
    assert [line for line in histograms if "_created" not in line] == [
        line for line in apart.splitlines() if "_created" not in line
    ]
    counts = {sample.labels["b"]: sample.value for sample in families(one)["times"].samples}
    assert counts == {b: sum(1 for seen_ in seen if seen_[1] == b) for b in {b for _, b, _ in seen}}
    sums = {sample.labels["a"]: sample.value for sample in families(one)["total"].samples}
    assert sums == {a: sum(eighths / 8 for a_, _, eighths in seen if a_ == a) for a in {a for a, _, _ in seen}}


def test_a_wider_bucket_has_the_newest_exemplar_of_those_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one = observed()
    for b, value, at in (("told", 0.05, 3.0), ("told", 0.3, 1.0), ("hidden", 0.3, 2.0)):
        series = one.at("x", b)
        with monkeypatch.context() as then:
            then.setattr("prometheus_client.metrics.time.time", lambda at=at: at)
            series.observe(value, {"trace_id": f"at {at}"})

    def traces(name: str) -> list[tuple[str, str]]:
        samples = families(one)[name].samples
        return [(s.labels["le"], s.exemplar.labels["trace_id"]) for s in samples if isinstance(s.exemplar, Exemplar)]

    assert traces("fine") == [("0.1", "at 3.0"), ("0.5", "at 1.0"), ("0.5", "at 2.0")]
    assert traces("coarse") == traces("some") == [("0.5", "at 3.0")]


def test_a_view_of_labels_that_are_not_observed_is_an_error() -> None:
    one = Observed(("a",), (1.0,), (View("v", "V.", ("b",)),))
    one.at("x").observe(1.0)
    with pytest.raises(KeyError):
        list(one.collect())
