"""Group L over the wire: whatever way a request ends, its upstream calls end, and every gauge returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.fakes.upstream import Behaviour, FakeUpstream
from tests.gateway.conftest import Gateway, Start, body
from tests.gateway.raw import WITHIN, gauges_return, leave, open_request

BEFORE_HEAD: Callable[[], Behaviour] = lambda: Behaviour(hold=asyncio.Event())  # noqa: E731
MID_STREAM: Callable[[], Behaviour] = lambda: Behaviour(hold_after=2)  # noqa: E731


@pytest.mark.parametrize("n_mode", ["fanout", "native"])
@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize(
    ("stream", "behaviour"),
    [(True, MID_STREAM), (True, BEFORE_HEAD), (False, BEFORE_HEAD)],
    ids=["mid-stream", "before-head", "not-streaming"],
)
async def test_L1_the_client_leaves(
    start: Start, upstream: FakeUpstream, n_mode: str, how: str, stream: bool, behaviour: Callable[[], Behaviour]
) -> None:
    gateway = await start(n=n_mode)
    calls = 8 if n_mode == "fanout" else 1
    upstream.behaviour = behaviour()
    upstream.behaviour.n = "native" if n_mode == "native" else "ignore"
    reader, writer = await open_request(gateway, body(n=8, stream=stream))
    await upstream.until(lambda: len(upstream.open_calls) == calls)
    if behaviour is MID_STREAM:
        await reader.readuntil(b"data: ")
    await leave(writer, how)
    await upstream.until(lambda: not upstream.open_calls, WITHIN)
    assert all(call.cancelled for call in upstream.calls)
    await gauges_return(gateway)
    mode, name = n_mode, 'nproxy_requests_total{code="499",endpoint="chat/completions"'
    assert await gateway.metric(f'{name},mode="{mode}",model="other",upstream="fake"}}') == 1.0
    assert await gateway.metric('nproxy_legs_total{outcome="cancelled",upstream="fake"}') == calls
    writer.close()


async def test_L1_at_n_1(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.behaviour = MID_STREAM()
    reader, writer = await open_request(gateway, body(stream=True))
    await reader.readuntil(b"data: ")
    writer.close()
    await upstream.until(lambda: not upstream.open_calls, WITHIN)
    await gauges_return(gateway)


async def test_L1_leaving_is_never_the_upstreams_failure(gateway: Gateway, upstream: FakeUpstream) -> None:
    """The client goes while the gateway writes to it."""
    upstream.behaviour = Behaviour(pieces=lambda seed: ["x" * 50_000] * 200)
    reader, writer = await open_request(gateway, body(n=2, stream=True))
    await reader.readuntil(b"data: ")
    await leave(writer, "reset")
    await upstream.until(lambda: not upstream.open_calls, WITHIN)
    await gauges_return(gateway)
    text = (await gateway.client.get("/metrics")).text
    outcomes = [line for line in text.splitlines() if line.startswith("nproxy_legs_total{")]
    assert outcomes == ['nproxy_legs_total{outcome="cancelled",upstream="fake"} 2.0']
    assert "nproxy_retries_total{" not in text


async def test_L3_a_client_that_leaves_the_gate_made_no_call(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(parallel=1)
    upstream.behaviour = Behaviour(hold_after=2)
    _, first = await open_request(gateway, body(stream=True))
    await upstream.until(lambda: len(upstream.open_calls) == 1)
    _, second = await open_request(gateway, body(stream=True))
    (waiting,) = gateway.app.upstreams.all
    async with asyncio.timeout(WITHIN):
        while waiting.gate.waiting == 0:
            await asyncio.sleep(0.01)
    second.close()
    async with asyncio.timeout(WITHIN):
        while waiting.gate.waiting:
            await asyncio.sleep(0.01)
    first.close()
    await upstream.until(lambda: not upstream.open_calls, WITHIN)
    await gauges_return(gateway)
    assert len(upstream.calls) == 1


async def test_Q20_gauges_return_after_any_end(gateway: Gateway, upstream: FakeUpstream) -> None:
    for behaviour in (
        Behaviour(),
        Behaviour(status=500),
        Behaviour(end_after=2, end="reset"),
        Behaviour(end_after=2, end="malformed"),
        Behaviour(before_head="close"),
        Behaviour(body=b"{"),
    ):
        upstream.behaviour = behaviour
        for stream in (False, True):
            await gateway.ask(n=3, stream=stream)
    await gauges_return(gateway)
    assert upstream.open_calls == []
