"""Answers that fail behind their 200 are counted, since no status tells of them."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream, raw_server
from tests.gateway.conftest import Gateway, Start, gateway_for
from tests.gateway.raw import exchange

NAME = "nproxy_broken_answers_total"


async def test_a_stream_that_breaks_off(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(models=[MODEL])
    upstream.behaviour = Behaviour(end_after=2, end="cut")
    await gateway.stream(n=2)
    line = f'{NAME}{{endpoint="chat/completions",model="{MODEL}",outcome="cut",upstream="fake"}}'
    assert await gateway.metric(line) == 1


async def test_neither_whole_answers_nor_refusals(gateway: Gateway, upstream: FakeUpstream) -> None:
    await gateway.stream(n=2)
    await gateway.ask(n=2)
    upstream.behaviour = Behaviour(status=400, body=b"{}")
    await gateway.ask(n=2)
    told = [line for line in (await gateway.client.get("/metrics")).text.splitlines() if line.startswith(f"{NAME}{{")]
    assert told and all(line.endswith(" 0.0") for line in told), "they may break off from now on, and have not"


@pytest.mark.parametrize(("status", "counts"), [(400, 0), (429, 0), (500, 1)])
async def test_an_error_behind_the_head_counts_where_it_would_in_front(
    start: Start, upstream: FakeUpstream, status: int, counts: int
) -> None:
    """A request that is wrong, or comes at a bad time, breaks no answer, be it that its status came too late."""
    stream = {"headers_after_seconds": 0.01, "ping_seconds": 0.02}
    gateway = await start(config={"stream": stream}, models=[MODEL], retries={"per_leg": 0})
    error = b'{"error": {"message": "no", "type": "t"}}'
    upstream.behaviour = Behaviour(status=status, body=error, hold=(hold := asyncio.Event()))
    asyncio.get_running_loop().call_later(0.2, hold.set)
    told = await gateway.stream(n=2)
    assert told.status == 200 and b'"error"' in told.raw
    line = f'{NAME}{{endpoint="chat/completions",model="{MODEL}",outcome="status",upstream="fake"}}'
    text = (await gateway.client.get("/metrics")).text
    assert (f"{line} {counts}.0" in text) if counts else (f"{line} 1.0" not in text)


async def test_what_passes_through_and_is_cut() -> None:
    async def cuts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await writer.drain()

    async with raw_server(cuts) as url, gateway_for({"upstreams": [{"name": "u", "replicas": [url]}]}) as gateway:
        await exchange(gateway, b"GET /v1/responses/1 HTTP/1.1\r\nHost: h\r\n\r\n")
        text = (await gateway.client.get("/metrics")).text
        assert f'{NAME}{{endpoint="passthrough",model="",outcome="cut",upstream="u"}} 1.0' in text
