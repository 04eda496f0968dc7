"""Group Q's passthrough rows: endpoints that go to an upstream as they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.fakes.upstream import FakeUpstream, raw_server
from tests.gateway.conftest import Gateway, Start, envelope, gateway_for
from tests.gateway.raw import exchange


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
async def test_Q8_any_method_body_and_query(gateway: Gateway, upstream: FakeUpstream, method: str) -> None:
    content = b'{"input":  [1, 2], "b": 1e2}' if method != "GET" else b""
    answer = await gateway.client.request(method, "/v1/embeddings?a=1&b=%20", content=content)
    assert answer.status_code == 200
    assert answer.json() == {"method": method, "target": "/v1/embeddings?a=1&b=%20", "body": content.decode()}
    assert answer.headers["x-from-upstream"] == "yes"
    assert answer.headers["x-nproxy-upstream"] == "fake"
    assert "set-cookie" not in answer.headers
    (seen,) = upstream.requests
    assert seen.headers.get("x-request-id") == answer.headers["x-request-id"]


async def test_Q16_responses_and_what_lies_below(gateway: Gateway, upstream: FakeUpstream) -> None:
    for target in ("/v1/responses", "/v1/responses/resp_1/input_items", "/v1/audio/speech", "/tokenize"):
        assert (await gateway.client.post(target, json={})).json()["target"] == target


async def test_Q8_a_head_request(gateway: Gateway, upstream: FakeUpstream) -> None:
    answer = await gateway.client.head("/v1/embeddings")
    assert answer.status_code == 200
    assert answer.content == b""
    assert upstream.requests[0].method == "HEAD"


async def test_Q8_multipart_goes_through_byte_by_byte(gateway: Gateway, upstream: FakeUpstream) -> None:
    audio = bytes(range(256)) * 400
    answer = await gateway.client.post(
        "/v1/audio/transcriptions", files={"file": ("a.wav", audio)}, data={"model": "whisper"}
    )
    assert answer.status_code == 200
    (seen,) = upstream.requests
    assert audio in seen.raw
    assert seen.headers["content-type"] == answer.request.headers["content-type"]
    assert seen.headers["content-length"] == str(len(seen.raw))


async def test_Q8_uploads_are_streamed(gateway: Gateway, upstream: FakeUpstream) -> None:
    """The upstream sees the request before its body is complete."""
    go_on = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"first"
        await go_on.wait()
        yield b"second"

    asked = asyncio.create_task(gateway.client.post("/v1/audio/transcriptions", content=slowly()))
    await upstream.until(lambda: len(upstream.requests) == 1)
    go_on.set()
    assert (await asked).json()["body"] == "firstsecond"


async def test_Q8_answers_are_streamed() -> None:
    go_on = asyncio.Event()

    async def two_halves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"5\r\nfirst\r\n")
        await go_on.wait()
        writer.write(b"6\r\nsecond\r\n0\r\n\r\n")
        await writer.drain()

    async with (
        raw_server(two_halves) as url,
        gateway_for({"upstreams": [{"name": "u", "replicas": [url]}]}) as gateway,
        gateway.client.stream("POST", "/v1/responses", json={"stream": True}) as answer,
    ):
        parts = answer.aiter_raw()
        assert await anext(parts) == b"first"
        go_on.set()
        assert await anext(parts) == b"second"


async def test_Q8_a_compressed_answer_stays_as_it_is(gateway: Gateway, upstream: FakeUpstream) -> None:
    answer = await gateway.client.post("/v1/embeddings", content=b"x", headers={"content-encoding": "zstd"})
    assert answer.status_code == 200
    assert upstream.requests[0].headers["content-encoding"] == "zstd"
    assert upstream.requests[0].headers["accept-encoding"] == answer.request.headers["accept-encoding"]


async def test_Q8_others_under_v1_are_404(gateway: Gateway, upstream: FakeUpstream) -> None:
    for path in ("/v1/files", "/v1/embeddingsx", "/v1/fine_tuning/jobs", "/v1/", "/"):
        answer = await gateway.client.post(path, json={})
        assert answer.status_code == 404
        assert envelope(answer)["code"] == "unknown_url"
    assert upstream.requests == []


async def test_paths_of_the_configuration(start: Start, upstream: FakeUpstream) -> None:
    listed = await start(config={"passthrough": {"paths": ["/v1/files"]}})
    assert (await listed.client.get("/v1/files/x")).status_code == 200
    assert (await listed.client.get("/v1/embeddings")).status_code == 404
    everything = await start(config={"passthrough": {"paths": "all"}})
    assert (await everything.client.get("/anything/at?all")).json()["target"] == "/anything/at?all"
    assert (await everything.client.get("/health")).json() == {"status": "ok"}


async def test_an_upload_over_the_limit(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(config={"limits": {"body_mib": 0.01}})
    announced = await gateway.client.post("/v1/embeddings", content=b"x" * 20_000)
    assert announced.status_code == 413
    assert upstream.requests == []

    async def drip() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 1000

    unannounced = await gateway.client.post("/v1/embeddings", content=drip())
    assert unannounced.status_code == 413
    envelope(unannounced)


async def test_an_upstream_that_is_down() -> None:
    async with FakeUpstream() as gone:
        url = gone.url
    async with gateway_for({"upstreams": [{"name": "gone", "replicas": [url]}]}) as gateway:
        answer = await gateway.client.post("/v1/embeddings", json={})
        assert answer.status_code == 502
        assert envelope(answer)["code"] == "upstream_unavailable"


async def test_a_cut_answer_is_cut_for_the_client_too() -> None:
    async def cuts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await writer.drain()

    async with raw_server(cuts) as url, gateway_for({"upstreams": [{"name": "u", "replicas": [url]}]}) as gateway:
        raw = await exchange(gateway, b"GET /v1/responses/1 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b"first" in raw
        assert b"\r\n0\r\n" not in raw


async def test_the_client_leaves(gateway: Gateway) -> None:
    closed = asyncio.Event()

    async def waits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.read()
        closed.set()

    async with raw_server(waits) as url, gateway_for({"upstreams": [{"name": "u", "replicas": [url]}]}) as other:
        _, writer = await asyncio.open_connection(*other.address)
        writer.write(b"GET /v1/responses/1 HTTP/1.1\r\nHost: h\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.close()
        async with asyncio.timeout(1):
            await closed.wait()
            await other.app.idle()


# Routing by the body's model


@asynccontextmanager
async def two_upstreams(*models: str, **config: Any) -> AsyncIterator[tuple[Gateway, FakeUpstream, FakeUpstream]]:
    """A gateway in front of upstreams `one` and `other`, with one model each."""
    async with FakeUpstream(models=[models[0]]) as one, FakeUpstream(models=[models[1]]) as other:
        upstreams = [{"name": "one", "replicas": [one.url]}, {"name": "other", "replicas": [other.url]}]
        async with gateway_for({"upstreams": upstreams, **config}) as gateway:
            yield gateway, one, other


def posts(upstream: FakeUpstream) -> list[bytes]:
    return [seen.raw for seen in upstream.requests if seen.method == "POST"]


async def test_json_goes_where_the_model_is() -> None:
    async with two_upstreams("a", "b") as (gateway, one, other):
        sent = b'{"model": "b", "input":   "x"}'
        headers = {"content-type": "application/json"}
        answer = await gateway.client.post("/v1/embeddings", content=sent, headers=headers)
        assert answer.headers["x-nproxy-upstream"] == "other"
        assert (posts(one), posts(other)) == ([], [sent])
        unknown = await gateway.client.post("/v1/embeddings", json={"model": "c"})
        assert envelope(unknown)["code"] == "model_not_found"
        unnamed = await gateway.client.post("/v1/embeddings", json={"input": "x"})
        assert unnamed.status_code == 400


async def test_multipart_goes_where_the_model_is() -> None:
    async with two_upstreams("a", "whisper") as (gateway, _, other):
        audio = b"\x00\xff" * 100_000
        files = {"file": ("a.wav", audio)}
        answer = await gateway.client.post("/v1/audio/transcriptions", data={"model": "whisper"}, files=files)
        assert answer.headers["x-nproxy-upstream"] == "other"
        (raw,) = posts(other)
        assert audio in raw
        assert raw.count(b'name="model"') == 1


async def test_without_a_model_the_configured_upstream() -> None:
    async with two_upstreams("a", "b", passthrough={"upstream": "other"}) as (gateway, _, _):
        answer = await gateway.client.get("/v1/responses/resp_1")
        assert answer.headers["x-nproxy-upstream"] == "other"


async def test_an_alias_is_written_as_the_upstreams_name(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(models={"mine": "theirs"})
    await gateway.client.post("/v1/embeddings", json={"model": "mine", "input": "x"})
    assert json.loads(posts(upstream)[0]) == {"model": "theirs", "input": "x"}
