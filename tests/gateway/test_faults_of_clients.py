"""Clients that leave, at each moment of a request's life and in each way: no call is made for them, none goes on."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.upstream import Behaviour, FakeUpstream
from tests.gateway.conftest import Gateway, Start, body
from tests.gateway.raw import WITHIN, gauges_return, leave, open_request, post

WAYS = pytest.mark.parametrize("how", ["close", "reset", "half-close"])


@WAYS
async def test_left_before_fan_out(gateway: Gateway, upstream: FakeUpstream, how: str) -> None:
    """The body is on its way."""
    _, writer = await asyncio.open_connection(*gateway.address)
    writer.write(post(b'{"model": "fake-mo', "Content-Length: 500"))
    await writer.drain()
    async with asyncio.timeout(WITHIN):
        while not gateway.app.inflight:
            await asyncio.sleep(0.001)
    await leave(writer, how)
    await gauges_return(gateway)
    assert upstream.calls == []
    writer.close()


@WAYS
async def test_left_in_the_queue_of_a_replica(start: Start, upstream: FakeUpstream, how: str) -> None:
    """Legs wait for `parallel` while another request has the only slot."""
    hold = Behaviour(hold=asyncio.Event())
    upstream.script(hold)
    gateway = await start(parallel=1)
    first = asyncio.create_task(gateway.ask())
    await upstream.until(lambda: len(upstream.open_calls) == 1)
    _, writer = await open_request(gateway, body(n=4))
    (one,) = gateway.app.upstreams.all
    async with asyncio.timeout(WITHIN):
        while not one.gate.waiting:
            await asyncio.sleep(0.001)
    await leave(writer, how)
    async with asyncio.timeout(WITHIN):
        while one.gate.waiting:
            await asyncio.sleep(0.001)
    assert hold.hold is not None
    hold.hold.set()
    assert (await first).status_code == 200
    await gauges_return(gateway)
    assert len(upstream.calls) == 1
    writer.close()


@WAYS
async def test_left_during_a_retrys_sleep(start: Start, upstream: FakeUpstream, how: str) -> None:
    upstream.script(Behaviour(status=503, headers={"Retry-After": "9"}))
    gateway = await start(breaker=None)
    _, writer = await open_request(gateway, body(stream=True))
    await upstream.until(lambda: len(upstream.calls) == 1 and not upstream.open_calls)
    async with asyncio.timeout(WITHIN):
        while not await gateway.metric('nproxy_retries_total{reason="status",upstream="fake"}'):
            await asyncio.sleep(0.001)
    await leave(writer, how)
    await gauges_return(gateway)
    assert len(upstream.calls) == 1
    writer.close()


async def test_what_the_servers_had_computed_is_counted(gateway: Gateway, upstream: FakeUpstream) -> None:
    """Three of four calls have ended and told their usage, when the client leaves."""
    upstream.behaviour = Behaviour(hold_after=1)
    upstream.script(*[Behaviour()] * 3)
    _, writer = await open_request(gateway, body(n=4, stream=True))
    async with asyncio.timeout(WITHIN):
        while await gateway.metric('nproxy_legs_total{outcome="ok",upstream="fake"}') < 3:
            await asyncio.sleep(0.001)
    await leave(writer, "close")
    await gauges_return(gateway)
    tokens = 'nproxy_tokens_total{model="fake-model",side="%s",type="%s",upstream="fake"}'
    assert await gateway.metric(tokens % ("upstream", "prompt")) == 3 * 5
    assert await gateway.metric(tokens % ("upstream", "completion")) == 3 * 4
    assert await gateway.metric(tokens % ("client", "completion")) == 0
    writer.close()
