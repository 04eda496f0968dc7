"""Shutting down: no new work is welcome, what runs may end, and what does not end is ended."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from nproxy.config import Config, Source
from nproxy.gateway.reload import Reload
from nproxy.gateway.serve import drain, hand_over, running, serve, step_down
from tests.clients import plain_client
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream, raw_server
from tests.gateway.conftest import Gateway, Start, body, envelope, upstream_settings
from tests.gateway.raw import apart, post
from tests.gateway.reloading import write
from tests.waiting import until

UNASKED = {"name": "u", "replicas": ["http://127.0.0.1:9/v1"]}


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


async def test_L5_who_leaves_the_port_to_others_answers_what_it_has_accepted() -> None:
    async with running(Config.model_validate({"listen": {"port": 0}, "upstreams": [UNASKED]})) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: len(gateway.http.connections) == 1)
        await drain(gateway.app, 30)
        leaving = asyncio.create_task(step_down(gateway))
        await asyncio.sleep(0.01)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        answer = await reader.read()
        assert b"200 OK" in answer and b"connection: close" in answer.lower()
        await leaving
        writer.close()


@pytest.mark.parametrize("how", ["drain", "hand over"])
async def test_L5_answers_under_way_end_their_connections(upstream: FakeUpstream, how: str) -> None:
    upstream.behaviour = Behaviour(hold=(held := asyncio.Event()))
    config = Config.model_validate({"upstreams": [upstream_settings(upstream)], "listen": {"port": 0}})
    async with running(config) as gateway, plain_client() as client:
        asked = asyncio.create_task(client.post(f"{gateway.url}/v1/chat/completions", json=body()))
        await upstream.until(lambda: len(upstream.open_calls) == 1)
        ending = asyncio.create_task(drain(gateway.app, 30) if how == "drain" else hand_over(gateway, 30))
        await asyncio.sleep(0)
        held.set()
        answer = await asked
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        await ending


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


async def test_L5_at_the_limit_what_is_not_with_an_upstream_yet_gets_the_error(gateway: Gateway) -> None:
    """A request whose body is still on its way: the client reads why it got no answer."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(post(b'{"model": ', "Content-Length: 1000"))
    while not gateway.app.inflight:
        await asyncio.sleep(0.01)
    await drain(gateway.app, 0.05)
    status, headers, content = apart(await reader.readuntil(b"shutting_down"))
    assert (status, headers["connection"]) == (503, "close")
    assert b"shutting_down" in content
    writer.close()


async def test_L5_behind_the_limit_a_further_request_gets_the_error(gateway: Gateway, upstream: FakeUpstream) -> None:
    """It could not end in time, and would be cut without a word."""
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    asked = asyncio.create_task(gateway.ask())
    await upstream.until(lambda: len(upstream.open_calls) == 1)
    await drain(gateway.app, 0.05)
    assert (await asked).status_code == 503
    upstream.behaviour = Behaviour()
    for path in ("/v1/chat/completions", "/v1/embeddings"):
        refused = await gateway.post(body(), path)
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        assert envelope(refused)["code"] == "shutting_down"
    assert len(upstream.calls) == 1
    assert (await gateway.client.get("/health")).status_code == 200


async def test_L5_at_the_limit_what_waits_for_permits_gets_the_error(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(config={"n_policy": {"max_n": 2}, "limits": {"inflight_choices": 2, "queue_seconds": 60}})
    upstream.behaviour = Behaviour(hold_after=2)
    streamed = asyncio.create_task(gateway.stream(n=2, seed=1))
    await upstream.until(lambda: len(upstream.open_calls) == 2)
    waiting = asyncio.create_task(gateway.ask(n=2))
    while gateway.app.inflight < 2:
        await asyncio.sleep(0.01)
    await drain(gateway.app, 0.05)
    refused = await waiting
    assert refused.status_code == 503
    assert envelope(refused)["code"] == "shutting_down"
    assert (await streamed).chunks[-1]["error"]["code"] == "shutting_down"
    assert len(upstream.calls) == 2, "it made no call"


async def test_L5_at_the_limit_what_passes_through_is_ended(gateway: Gateway, upstream: FakeUpstream) -> None:
    """Before its answer began with the error, behind that by a cut: half an answer must not look whole."""
    async with raw_server(_never_answers) as url:
        silent = gateway.client.post("/v1/embeddings", json={"model": MODEL})
        gateway.app.reconfigure(Config.model_validate({"upstreams": [upstream_settings(upstream, replicas=[url])]}))
        asked = asyncio.create_task(silent)
        while not gateway.app.inflight:
            await asyncio.sleep(0.01)
        await drain(gateway.app, 0.05)
        refused = await asked
        assert refused.status_code == 503
        assert envelope(refused)["code"] == "shutting_down"
    assert gateway.app.inflight == 0


async def _never_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    await reader.read()


async def test_L5_half_an_answer_that_passes_through_is_cut(gateway: Gateway, upstream: FakeUpstream) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        await reader.read()

    async with raw_server(half) as url:
        gateway.app.reconfigure(Config.model_validate({"upstreams": [upstream_settings(upstream, replicas=[url])]}))
        async with gateway.client.stream("POST", "/v1/embeddings", json={"model": MODEL}) as answer:
            pieces = answer.aiter_raw()
            assert await anext(pieces) == b"half"
            ending = asyncio.create_task(drain(gateway.app, 0.05))
            with pytest.raises(httpx.TransportError):
                await anext(pieces)
            await ending


async def test_L5_a_kept_connection_is_answered_while_draining_and_then_closed(gateway: Gateway) -> None:
    """It is not closed while idle: the client may just be sending on it."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    head = b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"
    writer.write(head)
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    gateway.app.draining = True
    await asyncio.sleep(0.05)
    writer.write(head)
    status, headers, _ = apart((await reader.read()).partition(b"}]}")[2])
    assert (status, headers["connection"]) == (200, "close")
    writer.close()


async def test_L5_sigterm(upstream: FakeUpstream, tmp_path: Path) -> None:
    """The whole of `serve`, ended by a real signal."""
    going = Behaviour(hold_after=2)
    upstream.behaviour = going
    listen = {"port": 0, "drain_seconds": 5, "huge_pages": "none"}
    parts: dict[str, Any] = {"listen": listen, "upstreams": [upstream_settings(upstream)]}
    file, urls = tmp_path / "nproxy.yaml", asyncio.Queue[str]()
    write(file, parts)
    served = asyncio.create_task(serve(Source(file, {}).read(), ready=lambda url, _: urls.put_nowait(url)))
    async with plain_client(await urls.get()) as client:
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


async def test_L5_the_limit_is_the_one_that_is_said_now(upstream: FakeUpstream, tmp_path: Path) -> None:
    """The settings were reloaded since the start."""
    upstream.behaviour = Behaviour(hold_after=2)
    file = tmp_path / "nproxy.yaml"
    listen = {"port": 0, "drain_seconds": 600, "huge_pages": "none"}
    parts: dict[str, Any] = {"listen": listen, "upstreams": [upstream_settings(upstream)]}
    write(file, parts)
    reading, urls, reloads = Source(file, {}).read(), asyncio.Queue[str](), asyncio.Queue[Reload]()
    serving = serve(reading, ready=lambda url, _: urls.put_nowait(url), reloaded=reloads.put_nowait)
    served = asyncio.create_task(serving)
    async with plain_client(await urls.get()) as client:
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=body(n=2, stream=True)))
        await upstream.until(lambda: len(upstream.open_calls) == 2)
        write(file, {**parts, "listen": {**listen, "drain_seconds": 0}})
        os.kill(os.getpid(), signal.SIGHUP)
        assert (await reloads.get()).outcome == "applied"
        os.kill(os.getpid(), signal.SIGTERM)
        assert "shutting_down" in (await asked).text
    async with asyncio.timeout(60):
        await served
