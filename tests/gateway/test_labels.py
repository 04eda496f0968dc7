"""Labels of metrics are bounded: whatever clients send, the values are those that docs/reference/metrics.md gives."""

from __future__ import annotations

import asyncio
import string
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nproxy.gateway.introspect import look
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream, raw_server
from tests.gateway.conftest import CHAT, Gateway, Start, gateway_for
from tests.telemetry.bounds import of_report, strays

KEY = "key-of-a-test"


paths = st.one_of(
    st.sampled_from(
        [CHAT, "/v1/completions", "/v1/models", "/v1/embeddings", "/metrics", "/", "/docs", "/health", "/status"]
    ),
    st.text(min_size=1).map(lambda text: "/" + quote(text)),
    st.text(min_size=1).map(lambda text: "/v1/models/" + quote(text)),
    st.text(min_size=1).map(lambda text: "/v1/embeddings/" + quote(text)),
)
asked = st.one_of(
    st.sampled_from([("POST", CHAT), ("POST", "/v1/completions"), ("POST", "/v1/embeddings")]),
    st.tuples(st.sampled_from(["GET", "POST", "PUT", "OPTIONS", "BREW"]), paths),
)
words = st.text(alphabet=string.ascii_letters + string.digits + "-_.:/", min_size=1, max_size=20)
HEADERS = ("x-request-id", "traceparent", "user-agent", "origin", "x-forwarded-for", "x-nproxy-mode", "accept")
headers = st.fixed_dictionaries({}, optional=dict.fromkeys(HEADERS, words))


@pytest.fixture(params=[{}, {"auth": {"api_key": KEY}}], ids=["open", "with a key"])
async def any_gateway(start: Start, request: pytest.FixtureRequest) -> Gateway:
    gateway: Gateway = await start(config=request.param, models="auto")
    return gateway


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=asked,
    model=st.one_of(st.text(), st.sampled_from([MODEL, MODEL.upper()])),
    extra=headers,
    key=st.one_of(words, st.just(KEY)),
    n=st.integers(0, 3),
)
async def test_what_clients_send_is_no_label_value(
    any_gateway: Gateway,
    upstream: FakeUpstream,
    asked: tuple[str, str],
    model: str,
    extra: dict[str, str],
    key: str,
    n: int,
) -> None:
    app, shown = any_gateway.app, {**extra, "authorization": f"Bearer {key}"}
    sent = {"model": model, "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "n": n, "stream": n == 2}
    await any_gateway.client.request(*asked, json=sent, headers=shown)
    await app.idle()
    look(app)
    told = app.metrics.report()
    assert strays(of_report(told), ("fake", MODEL, "default"), {upstream.url}) == []


async def test_a_request_without_a_key_is_counted_by_its_path(start: Start) -> None:
    gateway = await start(config={"auth": {"api_key": KEY}})
    for path in (CHAT, "/v1/embeddings", "/v1/models/x", "/nowhere"):
        assert (await gateway.post({}, path)).status_code == 401
    await gateway.app.idle()
    samples = gateway.app.metrics.report()["nproxy_requests"].samples
    refused = {dict(labels)["endpoint"] for _, labels in samples if dict(labels)["code"] == "401"}
    assert refused == {"chat/completions", "passthrough", "models", "other"}


async def test_calls_are_counted_by_replica_and_outcome(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(retries={"per_leg": 0})
    await gateway.ask(n=3)
    await gateway.client.post("/v1/embeddings", json={"model": MODEL, "input": "x"})
    assert _calls(gateway, upstream.url) == {"ok": 4}
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    asked = asyncio.create_task(gateway.ask(n=2))
    await upstream.until(lambda: len(upstream.open_calls) == 2)
    asked.cancel()
    await gateway.app.idle()
    assert _calls(gateway, upstream.url) == {"ok": 4, "cancelled": 2}
    await upstream.stop()
    await gateway.client.post("/v1/embeddings", json={"model": MODEL, "input": "x"})
    assert _calls(gateway, upstream.url) == {"ok": 4, "cancelled": 2, "connect": 1}


async def test_what_passes_through_is_counted_where_the_client_leaves() -> None:
    came = asyncio.Event()

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        came.set()
        await reader.read()

    async with (
        raw_server(says_nothing) as url,
        gateway_for({"upstreams": [{"name": "mute", "replicas": [url]}]}) as gateway,
    ):
        asked = asyncio.create_task(gateway.client.get("/v1/embeddings"))
        await came.wait()
        asked.cancel()
        await gateway.app.idle()
        assert _calls(gateway, url) == {"ok": 0, "cancelled": 1}


async def test_a_replica_that_goes_takes_its_series_along(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start()
    await gateway.ask()
    gateway.app.upstreams.by_name["fake"].gate.replace(())
    assert _calls(gateway, upstream.url) == {}


def _calls(gateway: Gateway, url: str) -> dict[str, float]:
    """Calls of the one replica there is, by outcome."""
    look(gateway.app)
    samples = gateway.app.metrics.report()["nproxy_replica_calls"].samples
    told = {
        (labelled["replica"], labelled["outcome"]): n for (_, pairs), n in samples.items() if (labelled := dict(pairs))
    }
    assert {replica for replica, _ in told} <= {url}
    return {outcome: count for (_, outcome), count in told.items()}
