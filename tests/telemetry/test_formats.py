"""Which form a scrape gets, and that OpenMetrics' own parser reads it."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from nproxy.telemetry.formats import OPENMETRICS, TEXT, Format, negotiated
from nproxy.telemetry.metrics import Metrics
from nproxy.telemetry.sums import exposition

OURS = "application/openmetrics-text"
PROMETHEUS_2 = f"{OURS};version=1.0.0;q=0.5,{OURS};version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
PROMETHEUS_3 = (
    f"{OURS};version=1.0.0;escaping=allow-utf-8;q=0.6,{OURS};version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html,application/xhtml+xml,*/*;q=0.8", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        (OURS, OPENMETRICS),
        (f"{OURS}; version=0.0.1", OPENMETRICS),
        (f"{OURS}; version=2.0.0", TEXT),
        (f"{OURS}; version=x", TEXT),
        (f"{OURS};q=0", TEXT),
        (f"{OURS};q=0.1, text/plain;q=0.2", TEXT),
        (f"text/plain;q=0.2, {OURS};q=0.2", OPENMETRICS),
        (f"{OURS};q=nan", OPENMETRICS),
        (f"{OURS.upper()} ; VERSION=1.0.0", OPENMETRICS),
        (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
    ],
)
def test_the_form_that_a_client_likes_best(accept: str, form: Format) -> None:
    assert negotiated(accept) is form


def test_openmetrics_has_exemplars_and_units_and_the_text_format_has_none() -> None:
    metrics = Metrics(version="1", upstreams=["u"], models=["m"])
    metrics.requests("chat/completions", "u", "m", "fanout", "200").observe(0.03, {"trace_id": TRACE})
    rich, plain = (exposition(metrics.report(), form).decode() for form in (OPENMETRICS, TEXT))
    read = {family.name: family for family in text_string_to_metric_families(rich)}  # type: ignore[no-untyped-call]
    assert read.keys() == metrics.report().keys()
    for name in ("nproxy_request_seconds", "gen_ai_server_request_duration_seconds"):
        family = read[name]
        assert family.unit == "seconds"
        (found,) = [sample.exemplar for sample in family.samples if sample.exemplar is not None]
        assert (found.labels, found.value) == ({"trace_id": TRACE}, 0.03)
    assert TRACE not in plain and "# EOF" not in plain
