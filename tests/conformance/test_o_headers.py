"""Group O over the wire: what goes on, what is made anew, what is never said."""

from __future__ import annotations

import gzip
import io
import json
import logging
import zlib

import pytest

from nproxy.telemetry import logs
from tests.fakes.upstream import Behaviour, FakeUpstream
from tests.gateway.conftest import Gateway, Start, body, envelope


async def test_O1_the_clients_key_goes_on(gateway: Gateway, upstream: FakeUpstream) -> None:
    await gateway.ask(n=2, headers=None)
    await gateway.post(body(n=2), headers={"authorization": "Bearer sk-client"})
    assert [call.headers.get("authorization") for call in upstream.calls] == [None, None] + ["Bearer sk-client"] * 2


async def test_O1_own_key_replaces_the_clients(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(api_key="sk-own")
    await gateway.post(body(), headers={"authorization": "Bearer sk-client", "x-api-key": "sk-client"})
    (call,) = upstream.calls
    assert call.headers["authorization"] == "Bearer sk-own"
    assert "sk-client" not in str(call.headers)


async def test_O1_no_key_at_all(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(api_key="none")
    await gateway.post(body(), headers={"authorization": "Bearer sk-client", "api-key": "sk-client"})
    assert "sk-client" not in str(upstream.calls[0].headers)


async def test_O1_no_key_and_no_prompt_is_logged(start: Start, upstream: FakeUpstream) -> None:
    stream = io.StringIO()
    logs.configure("debug", "json", stream)
    try:
        gateway = await start(api_key="sk-canary-own")
        sent = body(n=2, messages=[{"role": "user", "content": "canary-prompt"}])
        await gateway.post(sent, headers={"authorization": "Bearer sk-canary-client"})
        upstream.behaviour = Behaviour(status=500)
        await gateway.post(sent)
        told = (await gateway.client.get("/status")).text + (await gateway.client.get("/metrics")).text
    finally:
        for name in ("nproxy", "aiohttp"):
            logging.getLogger(name).handlers.clear()
            logging.getLogger(name).propagate = True
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    generated = [line for line in lines if line["message"] == "chat/completions"]
    assert [line["code"] for line in generated] == [200, 500]
    assert generated[0]["legs"] == 2
    assert "canary" not in stream.getvalue() + told


@pytest.mark.parametrize("given", ["abc-1.2_3", "a" * 128])
async def test_O2_request_id_is_echoed_and_numbered(gateway: Gateway, upstream: FakeUpstream, given: str) -> None:
    answer = await gateway.post(body(n=3, seed=1), headers={"x-request-id": given})
    assert answer.headers["x-request-id"] == given
    by_seed = sorted((call.body["seed"], call.headers["x-request-id"]) for call in upstream.calls)
    assert by_seed == [(1, f"{given}-0"), (2, f"{given}-1"), (3, f"{given}-2")]


@pytest.mark.parametrize("given", ["", "a b", "a" * 129, "ä", "x\ty"])
async def test_O2_other_ids_are_made_anew(gateway: Gateway, given: str) -> None:
    answer = await gateway.client.get("/health", headers={b"x-request-id": given.encode()})
    assert answer.headers["x-request-id"] != given
    assert answer.headers["x-request-id"].startswith("req-")


async def test_O2_on_errors_too(gateway: Gateway) -> None:
    for path, status in (("/nope", 404), ("/v1/chat/completions", 405)):
        answer = await gateway.client.get(path, headers={"x-request-id": "mine"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine")


async def test_O3_hop_by_hop_headers_end_here(gateway: Gateway, upstream: FakeUpstream) -> None:
    sent = {
        "connection": "x-private, keep-alive",
        "x-private": "1",
        "keep-alive": "timeout=5",
        "te": "trailers",
        "proxy-authorization": "secret",
        "x-public": "2",
        "cookie": "session=secret",
    }
    upstream.behaviour = Behaviour(headers={"Connection": "x-inner", "X-Inner": "1"})
    answer = await gateway.post(body(), headers=sent)
    (call,) = upstream.calls
    assert call.headers["x-public"] == "2"
    for name in ("x-private", "keep-alive", "te", "proxy-authorization", "cookie"):
        assert name not in call.headers
    assert "x-inner" not in answer.headers


async def test_O4_host_and_length_are_computed(gateway: Gateway, upstream: FakeUpstream) -> None:
    await gateway.post(body(n=2), headers={"host": "elsewhere.example"})
    for call in upstream.calls:
        assert call.headers["host"] == upstream.url.removeprefix("http://").removesuffix("/v1")
        assert int(call.headers["content-length"]) == len(call.raw)
        assert call.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_O5_compressed_bodies_are_decoded(gateway: Gateway, upstream: FakeUpstream, encoding: str) -> None:
    plain = json.dumps(body(n=2)).encode()
    packed = gzip.compress(plain) if encoding == "gzip" else zlib.compress(plain)
    answer = await gateway.post(packed, headers={"content-encoding": encoding})
    assert answer.status_code == 200
    assert len(upstream.calls) == 2
    assert "content-encoding" not in upstream.calls[0].headers


@pytest.mark.parametrize("cut", [b"", b"\x1f\x8b\x08", gzip.compress(b"{}")[:-4], gzip.compress(b"{}") + b"more"])
async def test_O5_broken_compression(gateway: Gateway, upstream: FakeUpstream, cut: bytes) -> None:
    answer = await gateway.post(cut, headers={"content-encoding": "gzip"})
    assert answer.status_code == 400
    envelope(answer)
    assert upstream.calls == []


async def test_O5_unknown_encodings(gateway: Gateway, upstream: FakeUpstream) -> None:
    answer = await gateway.post(b"x", headers={"content-encoding": "br"})
    assert answer.status_code == 415
    envelope(answer)
    assert upstream.calls == []


async def test_O8_idempotency_keys_differ_per_leg(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.script(Behaviour(status=503))
    await gateway.post(body(n=2, seed=1), headers={"idempotency-key": "k"})
    by_seed = sorted((call.body["seed"], call.headers["idempotency-key"]) for call in upstream.calls)
    assert by_seed == [(1, "k-0"), (1, "k-0"), (2, "k-1")], "a retry is the same request"


async def test_O9_traceparent_goes_on(gateway: Gateway, upstream: FakeUpstream) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await gateway.post(body(n=2), headers={"traceparent": trace, "tracestate": "a=b"})
    for call in upstream.calls:
        assert call.headers["traceparent"].startswith("00-4bf92f3577b34da6a3ce929d0e0e4736-")
        assert call.headers["tracestate"] == "a=b"


async def test_answers_carry_the_gateways_headers(gateway: Gateway) -> None:
    streamed = await gateway.stream(n=3)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.headers["cache-control"] == "no-cache"
    assert streamed.headers["x-accel-buffering"] == "no"
    whole = await gateway.ask(n=3)
    for headers in (streamed.headers, whole.headers):
        assert headers["x-nproxy-mode"] == "fanout"
        assert headers["x-nproxy-legs"] == "3"
        assert headers["x-nproxy-upstream"] == "fake"
        assert headers["server"] == "nproxy"
