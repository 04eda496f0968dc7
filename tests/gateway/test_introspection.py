"""/metrics, /status: what the gateway tells, under which names and labels."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from nproxy.config import Config
from nproxy.gateway.introspect import own_report
from nproxy.gateway.serve import running
from nproxy.telemetry import logs
from tests.clients import plain_client
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream
from tests.gateway.conftest import Gateway, Start


async def test_Q6_what_is_known_of_an_upstream_is_shown(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(n="auto", models=[MODEL])
    line = f'nproxy_capability{{model="{MODEL}",name="%s",upstream="fake"}}'

    async def shown() -> dict[str, object]:
        status = (await gateway.client.get("/status")).json()
        told: dict[str, object] = status["upstreams"][0]["capabilities"][MODEL]
        return told

    assert (await shown())["n"] == "untested"
    assert "nproxy_capability{" in (text := (await gateway.client.get("/metrics")).text)
    assert line % "n" not in text, "nobody knows yet"
    upstream.behaviour = Behaviour(refuse=("seed",))
    await gateway.ask(n=3)
    told = await shown()
    assert told["n"] == 1 and told["seed"] is False and told["logprobs"] is True
    assert await gateway.metric(line % "n") == 1
    assert await gateway.metric(line % "seed") == 0
    assert await gateway.metric(line % "stream_options") == 1


async def test_native_n_without_a_limit_is_infinite(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(n="native", models=[MODEL])
    assert await gateway.metric(f'nproxy_capability{{model="{MODEL}",name="n",upstream="fake"}}') == inf


async def test_saved_prompt_tokens_are_counted(start: Start, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(n="native")
    gateway = await start(n="native", models=[MODEL])
    await gateway.ask(n=4)
    assert await gateway.metric(f'nproxy_prompt_tokens_saved_total{{model="{MODEL}",upstream="fake"}}') == 15


async def test_inflight_gauges_while_it_runs(gateway: Gateway, upstream: FakeUpstream) -> None:
    held = asyncio.Event()
    upstream.behaviour = Behaviour(hold=held)
    asked = asyncio.create_task(gateway.ask(n=3))
    await upstream.until(lambda: len(upstream.open_calls) == 3)
    assert await gateway.metric("nproxy_inflight_choices") == 3
    assert await gateway.metric("nproxy_inflight_requests") == 1
    assert await gateway.metric('nproxy_inflight_legs{upstream="fake"}') == 3
    status = (await gateway.client.get("/status")).json()
    assert status["inflight"] == {"requests": 1, "choices": 3, "waiting": 0}
    assert status["upstreams"][0]["replicas"][0]["legs"] == 3
    held.set()
    await asked
    assert await gateway.metric("nproxy_inflight_choices") == 0


INTROSPECTION = ("/health", "/ready", "/metrics", "/status")


async def test_asking_about_the_gateway_is_no_work_in_flight(gateway: Gateway) -> None:
    assert await gateway.metric("nproxy_inflight_requests") == 0
    assert (await gateway.client.get("/status")).json()["inflight"] == {"requests": 0, "choices": 0, "waiting": 0}


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    """The access log, every level of it."""
    kept: list[logging.LogRecord] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record)

    handler, level = Kept(), logs.access.level
    logs.access.addHandler(handler)
    logs.access.setLevel(logging.DEBUG)
    yield kept
    logs.access.removeHandler(handler)
    logs.access.setLevel(level)


async def test_asking_about_the_gateway_is_logged_for_debugging_only(
    gateway: Gateway, lines: list[logging.LogRecord]
) -> None:
    for path in (*INTROSPECTION, "/health?probe=1", "/v1/models"):
        await gateway.client.get(path)
    await gateway.ask()
    await gateway.app.idle()
    told = [(record.getMessage(), record.levelname) for record in lines]
    assert told == [
        *((name, "DEBUG") for name in ("health", "ready", "metrics", "status", "health")),
        ("models", "INFO"),
        ("chat/completions", "INFO"),
    ]


async def test_streams_are_timed(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(pause=0.005)
    await gateway.stream(n=2)
    assert await gateway.metric('nproxy_time_to_first_token_seconds_count{model="fake-model",upstream="fake"}') == 1
    assert await gateway.metric('nproxy_inter_token_seconds_count{model="fake-model",upstream="fake"}') >= 6
    assert await gateway.metric('nproxy_sibling_skew_seconds_count{model="fake-model",upstream="fake"}') == 1


async def test_a_listed_model_is_a_label_and_what_clients_invent_never(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    assert (await gateway.ask()).status_code == 200
    assert (await gateway.ask(model="invented-a")).status_code == 200, "passed on, as there is nobody else to ask"
    upstream.list_fails = True
    gateway.app.upstreams.all[0].models._ended = -inf  # the list has grown old
    assert (await gateway.ask(model="invented-b")).status_code == 200, "passed on, as nobody knows the models"
    assert (await gateway.ask()).status_code == 200
    text = (await gateway.client.get("/metrics")).text
    assert "invented" not in text
    finished = 'nproxy_choices_total{finish_reason="stop",model="%s",upstream="fake"}'
    assert await gateway.metric(finished % MODEL) == 2
    assert await gateway.metric(finished % "other") == 2


async def test_retries_and_failures_are_counted(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.script(Behaviour(status=503))
    await gateway.ask(n=2)
    assert await gateway.metric('nproxy_legs_total{outcome="status",upstream="fake"}') == 1
    text = (await gateway.client.get("/metrics")).text
    assert 'nproxy_retries_total{reason="' in text


@pytest.mark.parametrize(
    ("status", "api_key", "outcome"),
    [
        (400, "own", "client_error"),
        (404, "own", "client_error"),
        (401, "passthrough", "client_error"),
        (401, "own", "status"),
        (429, "own", "status"),
        (500, "own", "status"),
    ],
)
async def test_a_wrong_request_is_no_failure_of_the_upstream(
    start: Start, upstream: FakeUpstream, status: int, api_key: str, outcome: str
) -> None:
    upstream.behaviour = Behaviour(status=status)
    gateway: Gateway = await start(api_key=api_key, retries={"per_leg": 0})
    await gateway.ask()
    assert await gateway.metric(f'nproxy_legs_total{{outcome="{outcome}",upstream="fake"}}') >= 1


async def test_a_call_is_ok_only_if_its_answer_could_be_read(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(body=b"<html>Welcome</html>", content_type="text/html")
    for stream in (False, True):
        assert (await gateway.ask(stream=stream)).status_code == 502
    text = (await gateway.client.get("/metrics")).text
    outcomes = {line.partition(" ")[0] for line in text.splitlines() if line.startswith("nproxy_legs_total{")}
    assert outcomes == {'nproxy_legs_total{outcome="malformed",upstream="fake"}'}


async def test_log_and_metrics_tell_the_mode_that_the_client_is_told(
    start: Start, lines: list[logging.LogRecord]
) -> None:
    gateway = await start(n="auto")
    answer = await gateway.ask(n=2)  # asked natively first, then for what was missing
    await gateway.app.idle()
    assert answer.headers["x-nproxy-mode"] == "fanout"
    assert [vars(record)["fields"]["mode"] for record in lines] == ["fanout"]
    assert 'mode="fanout"' in (await gateway.client.get("/metrics")).text


@pytest.mark.parametrize(("flags", "shown"), [("01", True), ("00", False)])
async def test_a_recorded_trace_is_an_exemplar(gateway: Gateway, flags: str, shown: bool) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    await gateway.stream(n=2, headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-{flags}"})
    await gateway.app.idle()
    rich = await gateway.client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert rich.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert rich.headers["vary"] == "Accept"
    told = {line.partition("_bucket{")[0] for line in rich.text.splitlines() if f'# {{trace_id="{trace}"}}' in line}
    names = {"nproxy_request_seconds", "nproxy_time_to_first_token_seconds", "gen_ai_client_operation_duration_seconds"}
    assert (names <= told) if shown else not told
    plain = await gateway.client.get("/metrics")
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert trace not in plain.text


async def test_build_info_and_lag(gateway: Gateway) -> None:
    text = (await gateway.client.get("/metrics")).text
    assert "nproxy_build_info{version=" in text
    assert "nproxy_event_loop_lag_seconds" in text
    assert "_created" not in text


async def test_metrics_can_be_switched_off(start: Start) -> None:
    gateway = await start(config={"telemetry": {"metrics": False}})
    assert (await gateway.client.get("/metrics")).status_code == 404


@pytest.fixture
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s") / "e.sock"


async def test_the_engine_is_the_first_upstream_and_its_metrics_stand_behind(socket_path: Path) -> None:

    async with FakeUpstream(Behaviour(n="native"), unix=str(socket_path)) as engine:
        config = Config.model_validate({"listen": {"port": 0}, "engine": {"model": MODEL}})
        async with (
            running(config, engine_socket=socket_path) as gateway,
            plain_client(gateway.url) as client,
        ):
            sent = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "n": 4}
            headers = {"authorization": "Bearer of-a-client"}
            answer = await client.post("/v1/chat/completions", json=sent, headers=headers)
            assert answer.status_code == 200
            assert answer.headers["x-nproxy-mode"] == "relay"
            assert answer.headers["x-nproxy-upstream"] == "engine"
            assert [call.body["n"] for call in engine.calls] == [4]
            # by it the engine knows whose prompts share what is computed
            assert engine.calls[0].headers["authorization"] == "Bearer of-a-client"
            text = (await client.get("/metrics")).text
            assert "nproxy_engine_sequences 1" in text
            assert "other_metric" not in text
            assert f'model="{MODEL}"' in text


class Meeting(Collector):
    """What is collected by two at once, and by which threads."""

    def __init__(self) -> None:
        self.met, self.threads = False, set[int]()
        self._barrier = threading.Barrier(2)

    def collect(self) -> Iterator[Metric]:
        self.threads.add(threading.get_ident())
        with suppress(threading.BrokenBarrierError):
            self._barrier.wait(0.3)
            self.met = True
        yield GaugeMetricFamily("nproxy_meeting", "", value=1)


async def test_metrics_are_read_beside_the_loop_and_by_one_at_a_time(gateway: Gateway) -> None:
    meeting = Meeting()
    gateway.app.metrics.registry.register(meeting)
    scrapes = await asyncio.gather(*(gateway.client.get("/metrics") for _ in range(2)))
    assert threading.get_ident() not in meeting.threads, "the loop would stand still"
    assert not meeting.met, "one would clear what the other reads"
    assert all("nproxy_replicas{" in scrape.text for scrape in scrapes)


async def test_who_stops_waiting_for_metrics_does_not_have_them_read_beside_the_next(gateway: Gateway) -> None:
    meeting = Meeting()
    gateway.app.metrics.registry.register(meeting)
    first = asyncio.create_task(own_report(gateway.app))
    while not meeting.threads:
        await asyncio.sleep(0.01)
    first.cancel()
    await own_report(gateway.app)
    assert not meeting.met
