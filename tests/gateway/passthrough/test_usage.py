"""What passes through is paid for by the token counts that the server reports."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.gateway.conftest import Gateway, envelope, gateway_for

USAGE = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 900, "total_tokens": 1000}
DELTA = b'data: {"type": "response.output_text.delta", "delta": "word"}\n\n'


async def answer(request: web.Request) -> web.StreamResponse:
    """A response of the Responses API: a stream if it is wanted, compressed if that is allowed."""
    response: dict[str, Any] = {"object": "response", "output": [], "usage": USAGE}
    asked = await request.json()
    if asked.get("stream"):
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        if "begun" in asked:
            await stream.write(f"data: {json.dumps(asked['begun'])}\n\n".encode())
        if "cut" in asked:
            await stream.write(DELTA * asked["cut"])
            await asyncio.sleep(0.01)  # so that what was written leaves first
            assert request.transport is not None
            request.transport.close()
            return stream
        while asked.get("endless"):
            await stream.write(DELTA)
            await asyncio.sleep(0.001)
        for event in ({"response": {"usage": None}}, {"response": response}):
            await stream.write(f"data: {json.dumps(event)}\n\n".encode())
        return stream
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        zipped = gzip.compress(json.dumps(response).encode())
        return web.Response(body=zipped, content_type="application/json", headers={"Content-Encoding": "gzip"})
    return web.json_response(response)


@asynccontextmanager
async def gateway(**limits: int) -> AsyncIterator[Gateway]:
    app = web.Application()
    app.router.add_post("/v1/responses", answer)
    async with TestServer(app) as server:
        upstreams = [{"name": "u", "replicas": [str(server.make_url("/v1"))], "models": ["m"]}]
        async with gateway_for({"upstreams": upstreams, "limits": limits}) as started:
            yield started


@pytest.mark.parametrize("stream", [False, True])
async def test_it_counts_for_the_rate_of_the_key(stream: bool) -> None:
    async with gateway(tokens_per_minute=900) as limited:
        asked = {"model": "m", "input": "hi", "stream": stream}
        first = await limited.client.post("/v1/responses", json=asked)
        assert (first.status_code, first.headers.get("content-encoding")) == (200, None)
        assert str(USAGE["total_tokens"]) in first.text
        again = await limited.client.post("/v1/responses", json=asked)
        assert (again.status_code, envelope(again)["code"]) == (429, "rate_limit_exceeded")
        assert again.headers["x-ratelimit-remaining-tokens"] == "0"
        counted = limited.app.metrics.registry.get_sample_value
        assert counted("nproxy_key_tokens_total", {"key": "other", "type": "prompt"}) == 100
        assert counted("nproxy_key_tokens_total", {"key": "other", "type": "completion"}) == 900


@pytest.mark.parametrize(
    "begun",
    [
        {"type": "response.created", "response": {"usage": None}},
        {"type": "message_start", "message": {"usage": {"input_tokens": 100, "output_tokens": 1}}},  # as Anthropic's
    ],
)
async def test_a_stream_that_its_client_leaves_is_paid_for_by_its_events(begun: dict[str, Any]) -> None:
    """Else whoever leaves before the last event, which holds the counts, would never pay."""
    async with gateway(tokens_per_minute=900) as limited:
        asked = {"model": "m", "input": "hi" * 200, "stream": True, "endless": True, "begun": begun}
        async with limited.client.stream("POST", "/v1/responses", json=asked) as answer:
            read = 0
            async for piece in answer.aiter_bytes():
                read += len(piece)
                if read > 300 * len(DELTA):
                    break
        await limited.client.get("/v1/models")
        async with asyncio.timeout(5):
            while limited.app.inflight:
                await asyncio.sleep(0.01)
        told = await limited.client.post("/v1/responses", json={"model": "m"})
        remaining = int(told.headers["x-ratelimit-remaining-tokens"])
        assert remaining <= 900 - 300 - 100


async def test_a_stream_that_its_server_cuts_is_paid_for_by_its_events() -> None:
    """The counts that it began with say nothing of what came."""
    async with gateway(tokens_per_minute=900) as limited:
        begun = {"type": "message_start", "message": {"usage": {"input_tokens": 100, "output_tokens": 1}}}
        asked = {"model": "m", "input": "hi", "stream": True, "cut": 300, "begun": begun}
        with pytest.raises(httpx.RemoteProtocolError):
            await limited.client.post("/v1/responses", json=asked)
        counted = limited.app.metrics.registry.get_sample_value
        assert counted("nproxy_key_tokens_total", {"key": "other", "type": "prompt"}) == 100
        assert counted("nproxy_key_tokens_total", {"key": "other", "type": "completion"}) == 301


async def test_without_a_rate_the_client_gets_the_encoding_that_it_asked_for() -> None:
    async with gateway() as free:
        told = await free.client.post("/v1/responses", json={"model": "m"}, headers={"accept-encoding": "gzip"})
        assert (told.headers["content-encoding"], told.json()["usage"]) == ("gzip", USAGE)
        assert free.app.metrics.registry.get_sample_value("nproxy_key_tokens_total", {"key": "other"}) is None
