"""Prometheus itself reads the metrics of both roads: its linter finds nothing, and a scrape of it stores them."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as of_text

from tests.real.fixtures import MODEL
from tests.real.metrics import wait_for
from tests.real.processes import ROOT, Server, free_port, server
from tests.system.tools import PROMETHEUS, PROMTOOL, needed

pytestmark = pytest.mark.model

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def used(road: Server) -> Server:
    """A road that has answered a request, so that its labelled metrics exist."""
    with OpenAI(base_url=road.v1, api_key="unused", max_retries=0) as client:
        question = [{"role": "user", "content": "Say hello."}]
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
    """promtool reads the text format alone; OpenMetrics' own parser is stricter than its linter."""
    plain = httpx.get(f"{used.url}/metrics", trust_env=False).text
    rich = httpx.get(f"{used.url}/metrics", headers={"accept": "application/openmetrics-text"}, trust_env=False).text
    read = text_string_to_metric_families(rich)  # type: ignore[no-untyped-call]
    assert {family.name for family in read} == {family.name for family in of_text(plain)}


def test_the_configuration_that_is_shipped_is_right() -> None:
    argv = [needed(PROMTOOL), "check", "config", str(ROOT / "grafana" / "prometheus.yml")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_a_scrape_stores_them(used: Server, tmp_path: Path, logs: Path, request: pytest.FixtureRequest) -> None:
    shipped = (ROOT / "grafana" / "prometheus.yml").read_text()
    assert "127.0.0.1:8000" in shipped
    config = tmp_path / "prometheus.yml"
    config.write_text(shipped.replace("127.0.0.1:8000", used.url.removeprefix("http://")).replace("5s", "1s"))
    port = free_port()
    argv = [needed(PROMETHEUS), f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    argv += [f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage"]
    with server(argv, port=port, log=logs / f"{request.node.name}.log", ready="/-/ready") as prometheus:

        def value(query: str) -> list[float]:
            got = httpx.get(f"{prometheus.url}/api/v1/query", params={"query": query}, trust_env=False)
            return [float(row["value"][1]) for row in got.raise_for_status().json()["data"]["result"]]

        wait_for(lambda: value('up{job="nproxy"}') == [1.0], seconds=15.0, what="a scrape that succeeded")
        assert value("sum(nproxy_choices_total) >= 2")
        assert value("nproxy_inflight_choices") == [0.0]
        assert value('sum(nproxy_tokens_total{type="completion",side="client"}) > 0')
        assert value("histogram_quantile(0.5, sum by (le) (nproxy_time_to_first_token_seconds_bucket)) > 0")
        assert value('sum(gen_ai_client_token_usage_sum{gen_ai_operation_name="chat",gen_ai_token_type="output"}) > 0')
        asked = {"query": "nproxy_request_seconds_bucket", "start": "0", "end": str(time.time() + 60)}
        got = httpx.get(f"{prometheus.url}/api/v1/query_exemplars", params=asked, trust_env=False).raise_for_status()
        found = [exemplar["labels"] for series in got.json()["data"] for exemplar in series["exemplars"]]
        assert found and all(labels == {"trace_id": TRACE} for labels in found)
