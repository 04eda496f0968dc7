"""Several processes' metrics as one: exact sums, gauges by their rules, and no counter that ever goes back."""

from __future__ import annotations

import json
from math import inf

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from nproxy.telemetry.metrics import Metrics
from nproxy.telemetry.sums import Family, Report, Totals, add_up, as_data, exposition, from_data, lasting


def metrics() -> Metrics:
    return Metrics(version="1", upstreams=["u"], models=["m"])


def sample(report: Report, name: str, **labels: str) -> float:
    return {
        (sample, tuple(sorted(found))): value
        for family in report.values()
        for (sample, found), value in family.samples.items()
    }[name, tuple(sorted(labels.items()))]


def test_a_report_is_written_as_the_registry_itself_is() -> None:
    one = metrics()
    one.requests("/v1", "u", "m", "native", "200").inc(3)
    one.leg_width.observe(5)
    one.capability.labels("u", "m", "n").set(inf)
    assert exposition(one.report()) == one.exposition()
    assert from_data(json.loads(json.dumps(as_data(one.report())))) == one.report()


def test_counters_and_histograms_add_up_and_each_gauge_by_its_rule() -> None:
    one, two = metrics(), metrics()
    one.requests("/v1", "u", "m", "native", "200").inc(3)
    two.requests("/v1", "u", "m", "native", "200").inc(4)
    two.requests("/v1", "u", "m", "native", "500").inc()
    one.leg_width.observe(1)
    two.leg_width.observe(100)
    one.inflight_requests.set(5)
    two.inflight_requests.set(6)
    one.loop_lag.set(0.5)
    two.loop_lag.set(0.25)
    one.replica_up.labels("u", "r").set(1)
    two.replica_up.labels("u", "r").set(0)
    whole = add_up((one.report(), two.report()))
    labels = {"endpoint": "/v1", "upstream": "u", "model": "m", "mode": "native"}
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
    one.legs("u", "ok").inc(9)
    one.inflight_requests.set(4)
    totals.retire(one.report())
    whole = totals.over([two.report()])
    assert sample(whole, "nproxy_legs_total", upstream="u", outcome="ok") == 9
    assert sample(whole, "nproxy_inflight_requests") == 0
    families = list(text_string_to_metric_families(exposition(whole).decode()))
    assert len(families) == len({family.name for family in families})


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
    before = lasting(totals.over(living.values()))
    for end in ends:
        if end in living:
            totals.retire(living.pop(end))
        after = lasting(totals.over(living.values()))
        assert after == before
