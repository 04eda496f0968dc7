"""Prometheus itself reads the metrics of both roads: its linter finds nothing, and its scrape stores them."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as of_text

from tests.real.fixtures import MODEL
from tests.real.processes import Server
from tests.system.prometheus import Prometheus
from tests.system.tools import PROMTOOL, needed

pytestmark = pytest.mark.model

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def used(road: Server) -> Server:
    """A road that has answered a request, so that its labelled metrics exist."""
    with OpenAI(base_url=road.v1, api_key="unused", max_retries=0) as client:
        question: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]
        asked = client.chat.completions.create(
            model=MODEL, messages=question, n=2, max_tokens=8, stream=True, extra_headers={"traceparent": TRACEPARENT}
        )
        list(asked)
    return road


def test_promtool_finds_nothing(used: Server) -> None:
    exposition = httpx.get(f"{used.url}/metrics", trust_env=False).raise_for_status().content
    done = subprocess.run([needed(PROMTOOL), "check", "metrics"], input=exposition, capture_output=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_openmetrics_is_the_same_and_right(used: Server) -> None:
    """promtool reads only the text format; OpenMetrics' own parser is stricter than promtool's linter."""
    plain = httpx.get(f"{used.url}/metrics", trust_env=False).text
    rich = httpx.get(f"{used.url}/metrics", headers={"accept": "application/openmetrics-text"}, trust_env=False).text
    read = text_string_to_metric_families(rich)  # type: ignore[no-untyped-call]
    assert {family.name for family in read} == {family.name for family in of_text(plain)}


def test_a_scrape_stores_them(used: Server, tmp_path: Path) -> None:
    with Prometheus.started({"road": used.url.removeprefix("http://")}, tmp_path) as prometheus:
        prometheus.scraped(1)
        value = prometheus.values
        assert value("sum(nproxy_choices_total) >= 2")
        assert value("nproxy_inflight_choices") == [0.0]
        assert value('sum(nproxy_tokens_total{type="completion",side="client"}) > 0')
        assert value("histogram_quantile(0.5, sum by (le) (nproxy_time_to_first_token_seconds_bucket)) > 0")
        assert value('sum(gen_ai_client_token_usage_sum{gen_ai_operation_name="chat",gen_ai_token_type="output"}) > 0')
        asked = {"query": "nproxy_request_seconds_bucket", "start": "0", "end": str(time.time() + 60)}
        told = prometheus.get("query_exemplars", **asked)
        found = [exemplar["labels"] for series in told for exemplar in series["exemplars"]]
        assert found and all(labels == {"trace_id": TRACE} for labels in found)
