"""Group Q: endpoints that are forwarded to an upstream unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.conformance.settings import of_http
from tests.fakes.upstream import FakeUpstream, raw_server
from tests.gateway.conftest import Gateway, envelope, gateway_for


@of_http
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


@of_http
async def test_Q16_responses_and_what_lies_below(gateway: Gateway, upstream: FakeUpstream) -> None:
    for target in ("/v1/responses", "/v1/responses/resp_1/input_items", "/v1/audio/speech", "/tokenize"):
        assert (await gateway.client.post(target, json={})).json()["target"] == target


@of_http
async def test_Q8_a_head_request(gateway: Gateway, upstream: FakeUpstream) -> None:
    answer = await gateway.client.head("/v1/embeddings")
    assert answer.status_code == 200
    assert answer.content == b""
    assert upstream.requests[0].method == "HEAD"


@of_http
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


@of_http
async def test_Q8_uploads_are_streamed(gateway: Gateway, upstream: FakeUpstream) -> None:
    """The upstream gets the request before its body is complete."""
    go_on = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"first"
        await go_on.wait()
        yield b"second"

    asked = asyncio.create_task(gateway.client.post("/v1/audio/transcriptions", content=slowly()))
    await upstream.until(lambda: len(upstream.requests) == 1)
    go_on.set()
    assert (await asked).json()["body"] == "firstsecond"


@of_http
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


@of_http
async def test_Q8_a_compressed_answer_stays_as_it_is(gateway: Gateway, upstream: FakeUpstream) -> None:
    answer = await gateway.client.post("/v1/embeddings", content=b"x", headers={"content-encoding": "zstd"})
    assert answer.status_code == 200
    assert upstream.requests[0].headers["content-encoding"] == "zstd"
    assert upstream.requests[0].headers["accept-encoding"] == answer.request.headers["accept-encoding"]


@of_http
async def test_Q8_others_under_v1_are_404(gateway: Gateway, upstream: FakeUpstream) -> None:
    for path in ("/v1/files", "/v1/embeddingsx", "/v1/fine_tuning/jobs", "/v1/", "/"):
        answer = await gateway.client.post(path, json={})
        assert answer.status_code == 404
        assert envelope(answer)["code"] == "unknown_url"
    assert upstream.requests == []
