"""Shutting down: no new work is welcome, what runs may end, and what does not end is ended."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import httpx

from nproxy.config import Config
from nproxy.gateway.serve import drain, serve
from tests.fakes.upstream import Behaviour, FakeUpstream
from tests.gateway.conftest import Gateway, Start, body, envelope, upstream_settings


async def test_L5_ready_says_no_while_streams_end(gateway: Gateway, upstream: FakeUpstream) -> None:
    going = Behaviour(hold_after=2)
    upstream.behaviour = going
    asked = asyncio.create_task(gateway.stream(n=2, seed=1))
    await upstream.until(lambda: len(upstream.open_calls) == 2)
    assert (await gateway.client.get("/ready")).status_code == 200
    draining = asyncio.create_task(drain(gateway.app, 30))
    await asyncio.sleep(0)
    refused = await gateway.client.get("/ready")
    assert refused.status_code == 503
    assert envelope(refused)["code"] == "not_ready"
    assert refused.headers["connection"] == "close"
    assert (await gateway.client.get("/health")).status_code == 200
    going.go_on.set()
    answer = await asked
    assert answer.done
    await draining


async def test_L5_at_the_limit_streams_get_an_error_event(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(hold_after=2)
    streamed = asyncio.create_task(gateway.stream(n=2, seed=1))
    await upstream.until(lambda: len(upstream.open_calls) == 2)
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    whole = asyncio.create_task(gateway.ask(n=2))
    await upstream.until(lambda: len(upstream.open_calls) == 4)
    await drain(gateway.app, 0.1)
    answer = await streamed
    assert answer.status == 200
    assert answer.chunks[-1]["error"]["code"] == "shutting_down"
    assert b"[DONE]" not in answer.raw
    refused = await whole
    assert refused.status_code == 503
    assert envelope(refused)["code"] == "shutting_down"
    await upstream.until(lambda: not upstream.open_calls, 1.0)
    assert gateway.app.inflight == 0


async def test_L5_sigterm(start: Start, upstream: FakeUpstream) -> None:
    """The whole of `serve`, ended by a real signal."""
    going = Behaviour(hold_after=2)
    upstream.behaviour = going
    parts: dict[str, Any] = {"listen": {"port": 0, "drain_seconds": 5}, "upstreams": [upstream_settings(upstream)]}
    urls: asyncio.Queue[str] = asyncio.Queue()
    served = asyncio.create_task(serve(Config.model_validate(parts), ready=urls.put_nowait))
    url = await urls.get()
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=body(n=2, stream=True)))
        await upstream.until(lambda: len(upstream.open_calls) == 2)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(2):
            while (await client.get("/ready")).status_code != 503:
                await asyncio.sleep(0.01)
        going.go_on.set()
        assert (await asked).text.endswith("data: [DONE]\n\n")
    async with asyncio.timeout(3):
        await served
