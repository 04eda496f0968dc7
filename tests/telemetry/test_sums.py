"""Several processes' metrics as one: exact sums, gauges by their rules, and no counter that ever goes back."""

from __future__ import annotations

import zlib
from base64 import b64encode
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from nproxy.telemetry.exemplars import Trace
from nproxy.telemetry.metrics import Metrics
from nproxy.telemetry.sums import (
    Family,
    Report,
    Totals,
    add_up,
    exposition,
    lasting,
    packed,
    report_of_text,
    unpacked,
)


def metrics() -> Metrics:
    return Metrics(version="1", upstreams=["u"], models=["m"])


def observed(one: Metrics, code: str, times: int = 1, trace: Trace | None = None) -> None:
    for _ in range(times):
        one.requests("completions", "u", "m", "native", code).observe(0.5, trace)


def sample(report: Report, name: str, **labels: str) -> float:
    return {
        (sample, tuple(sorted(found))): value
        for family in report.values()
        for (sample, found), value in family.samples.items()
    }[name, tuple(sorted(labels.items()))]


def test_a_report_is_written_as_the_registry_itself_is() -> None:
    one = metrics()
    observed(one, "200", 3)
    one.leg_width.observe(5)
    one.capability.values = {("u", "m", "n"): inf}
    assert exposition(one.report()) == generate_latest(one.registry)
    assert unpacked(packed(one.report())) == one.report()


def test_counters_and_histograms_add_up_and_each_gauge_by_its_rule() -> None:
    one, two = metrics(), metrics()
    observed(one, "200", 3)
    observed(two, "200", 4)
    observed(two, "500")
    one.leg_width.observe(1)
    two.leg_width.observe(100)
    one.inflight_requests.set(5)
    two.inflight_requests.set(6)
    one.loop_lag.set(0.5)
    two.loop_lag.set(0.25)
    one.replica_up.values = {("u", "r"): 1}
    two.replica_up.values = {("u", "r"): 0}
    whole = add_up((one.report(), two.report()))
    labels = {"endpoint": "completions", "upstream": "u", "model": "m", "mode": "native"}
    assert sample(whole, "nproxy_requests_total", **labels, code="200") == 7
    assert sample(whole, "nproxy_requests_total", **labels, code="500") == 1
    assert sample(whole, "nproxy_leg_width_bucket", le="8.0") == 1
    assert sample(whole, "nproxy_leg_width_count") == 2
    assert sample(whole, "nproxy_leg_width_sum") == 101
    assert sample(whole, "nproxy_inflight_requests") == 11
    assert sample(whole, "nproxy_event_loop_lag_seconds") == 0.5
    assert sample(whole, "nproxy_replica_up", upstream="u", replica="r") == 0
    assert sample(whole, "nproxy_build_info", version="1") == 1


def test_a_process_that_is_gone_leaves_what_it_counted_and_not_how_it_stood() -> None:
    one, two, totals = metrics(), metrics(), Totals()
    for _ in range(9):
        one.legs("completions", "u", "m", "ok").observe(1.0)
    one.inflight_requests.set(4)
    totals.retire(one.report())
    whole = totals.over([two.report()])
    assert sample(whole, "nproxy_legs_total", upstream="u", outcome="ok") == 9
    assert sample(whole, "nproxy_inflight_requests") == 0
    families = list(text_string_to_metric_families(exposition(whole).decode()))
    assert len(families) == len({family.name for family in families})


def exemplars(report: Report, name: str) -> dict[str, str]:
    """The trace of each bucket of a metric that has one."""
    family = report[name]
    return {dict(labels)["le"]: trace.labels["trace_id"] for (_, labels), trace in family.exemplars.items()}


def test_of_exemplars_the_newest_stays() -> None:
    one, two, totals = metrics(), metrics(), Totals()
    observed(one, "200", trace={"trace_id": "first"})
    observed(two, "200", trace={"trace_id": "second"})
    one.requests("completions", "u", "m", "native", "200").observe(20.0, {"trace_id": "slow"})
    reports = [one.report(), two.report()]
    for parts in (reports, reports[::-1]):
        assert exemplars(add_up(parts), "nproxy_request_seconds") == {"0.5": "second", "30.0": "slow"}
    totals.retire(two.report())
    assert exemplars(totals.over([one.report()]), "nproxy_request_seconds") == {"0.5": "second", "30.0": "slow"}
    assert unpacked(packed(add_up(reports))) == add_up(reports)


def test_what_is_counted_of_replicas_goes_with_them() -> None:
    """Replicas come and go for as long as the parent lives: of those that no worker has any more, nothing is left."""
    one, two, totals = metrics(), metrics(), Totals()
    one.replica_calls.values = {("u", "stays", "ok"): 3, ("u", "stays", "timeout"): 2, ("u", "goes", "ok"): 5}
    two.replica_calls.values = {("u", "stays", "ok"): 4}
    totals.retire(one.report())
    whole = totals.over([two.report()])
    told = {dict(labels)["replica"] for _, labels in whole["nproxy_replica_calls"].samples}
    assert told == {"stays"}
    assert sample(whole, "nproxy_replica_calls_total", upstream="u", replica="stays", outcome="ok") == 7
    assert sample(whole, "nproxy_replica_calls_total", upstream="u", replica="stays", outcome="timeout") == 2
    two.replica_calls.values = {("u", "stays", "ok"): 4, ("u", "goes", "ok"): 0}
    whole = totals.over([two.report()])
    assert sample(whole, "nproxy_replica_calls_total", upstream="u", replica="goes", outcome="ok") == 0, "forgotten"


def test_errors_of_a_replica_stay_although_no_other_process_met_the_same() -> None:
    one, two, totals = metrics(), metrics(), Totals()
    one.replica_calls.values = {("u", replica, "status"): 3 for replica in ("stays", "goes")}
    one.replica_errors.values = {("u", replica, "500", "other"): 3 for replica in ("stays", "goes")}
    two.replica_calls.values = {("u", "stays", "ok"): 4}
    totals.retire(one.report())
    whole = totals.over([two.report()])
    where = {"upstream": "u", "replica": "stays"}
    assert sample(whole, "nproxy_replica_errors_total", **where, code="500", api_key="other") == 3
    told = {dict(labels)["replica"] for _, labels in whole["nproxy_replica_errors"].samples}
    assert told == {"stays"}


def test_what_is_counted_of_replicas_outlives_the_moment_when_all_processes_are_gone() -> None:
    """They may be killed together, and those that follow them report nothing at first."""
    one, two, totals = metrics(), metrics(), Totals()
    one.replica_calls.values = {("u", "r", "ok"): 3}
    totals.retire(one.report())
    of_processes: list[list[Report]] = [[], [{}]]
    for living in of_processes:
        whole = totals.over(living)
        assert sample(whole, "nproxy_replica_calls_total", upstream="u", replica="r", outcome="ok") == 3
    two.replica_calls.values = {("u", "r", "ok"): 4}
    whole = totals.over([two.report()])
    assert sample(whole, "nproxy_replica_calls_total", upstream="u", replica="r", outcome="ok") == 7


def test_a_report_of_thousands_of_models_is_small_on_its_way() -> None:
    one = metrics()
    for number in range(1000):
        one.first_token("completions", "u", f"model-{number}").observe(0.5)
    report = one.report()
    assert len(packed(report)) < len(exposition(report)) / 10
    assert unpacked(packed(report)) == report


@pytest.mark.parametrize("text", ["", "no base64!", "bm8gemxpYg==", b64encode(zlib.compress(b"7")).decode()])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        unpacked(text)


def test_another_processes_text_is_read_as_far_as_it_is_its_own() -> None:
    text = b"# HELP nproxy_engine_a_total A.\n# TYPE nproxy_engine_a_total counter\nnproxy_engine_a_total 1\nb 2\n"
    told = report_of_text(text, "nproxy_engine_")
    assert exposition(told) == text.replace(b" 1\nb 2", b" 1.0")
    assert report_of_text(b"", "nproxy_engine_") == report_of_text(b"no {metrics", "nproxy_engine_") == {}


counts = st.dictionaries(st.sampled_from("abc"), st.integers(0, 1000), max_size=3)
kinds = st.sampled_from([("counter", "sum"), ("gauge", "sum"), ("gauge", "max"), ("gauge", "min")])


@st.composite
def reports(draw: st.DrawFn) -> list[Report]:
    rules = draw(st.dictionaries(st.sampled_from("xyz"), kinds, max_size=3))
    return [
        {
            name: Family(kind, "", across, {(name, (("l", label),)): float(n) for label, n in draw(counts).items()})  # type: ignore[arg-type]
            for name, (kind, across) in rules.items()
        }
        for _ in range(draw(st.integers(0, 4)))
    ]


@given(reports())
def test_the_order_does_not_matter(parts: list[Report]) -> None:
    backwards = add_up(reversed(parts))
    assert add_up(parts) == backwards
    assert add_up((add_up(parts[:2]), add_up(parts[2:]))) == add_up(parts)


@given(reports(), st.lists(st.integers(0, 3)))
def test_no_counter_goes_back_when_processes_end(parts: list[Report], ends: list[int]) -> None:
    totals, living = Totals(), dict(enumerate(parts))
    before = lasting(totals.over([*living.values()]))
    for end in ends:
        if end in living:
            totals.retire(living.pop(end))
        after = lasting(totals.over([*living.values()]))
        assert after == before
