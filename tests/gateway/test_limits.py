"""Readers that take nothing, permits, and replicas."""

from __future__ import annotations

import asyncio

from tests.fakes.upstream import Behaviour, FakeUpstream, at_once
from tests.gateway.conftest import Gateway, Start, body, envelope, gateway_for, upstream_settings
from tests.gateway.raw import gauges_return, open_request


async def test_a_reader_that_takes_nothing_is_left(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(config={"limits": {"write_seconds": 0.4}})
    upstream.behaviour = Behaviour(pieces=lambda seed: ["x" * 100_000] * 1000)
    _, writer = await open_request(gateway, body(n=2, stream=True))
    await upstream.until(lambda: len(upstream.calls) == 2)
    await upstream.until(lambda: not upstream.open_calls, 5.0)
    await gauges_return(gateway)
    writer.close()


async def test_readers_are_looked_after_again_when_nobody_was_answered_for_a_while(
    start: Start, upstream: FakeUpstream
) -> None:
    gateway = await start(config={"limits": {"write_seconds": 0.4}})
    assert (await gateway.ask()).status_code == 200
    assert not gateway.app.settings.write_guard._watched, "who was answered is not looked after any more"
    await asyncio.sleep(0.3)  # two looks, of which the first finds nobody
    upstream.behaviour = Behaviour(pieces=lambda seed: ["x" * 20_000_000])
    _, writer = await open_request(gateway, body())
    await upstream.until(lambda: len(upstream.calls) == 2)
    async with asyncio.timeout(5):
        await gateway.app.idle()
    writer.close()


async def something_waits_to_be_taken(gateway: Gateway) -> None:
    """Wait until the sockets take no more of an answer."""
    async with asyncio.timeout(5):
        waits: list[int] = []
        while len(waits) < 2 or waits[-1] == 0 or waits[-1] != waits[-2]:
            await asyncio.sleep(0.05)
            transports = [connection.transport for connection in gateway.http.connections]
            waits.append(sum(one.get_write_buffer_size() for one in transports if one is not None))


async def test_a_reader_that_takes_nothing_does_not_keep_the_gateway_from_ending(upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(pieces=lambda seed: ["x" * 100_000] * 1000)
    async with asyncio.timeout(10):
        async with gateway_for({"upstreams": [upstream_settings(upstream)]}) as gateway:
            _, writer = await open_request(gateway, body(n=2, stream=True))
            await something_waits_to_be_taken(gateway)
    writer.close()


async def test_a_closed_connection_that_is_not_read_is_broken_off(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(pieces=lambda seed: ["x" * 30_000_000])
    _, writer = await open_request(gateway, body())
    await something_waits_to_be_taken(gateway)
    (transport,) = gateway.http._transports.values()
    transport.close()
    for _ in range(2):
        await asyncio.sleep(0)
        assert gateway.http._transports, "the client has not taken everything yet"
        gateway.http._sweep()
    async with asyncio.timeout(2):
        while gateway.http._transports:
            await asyncio.sleep(0.01)
    writer.close()


async def test_a_reader_that_takes_nothing_of_a_whole_answer(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(config={"limits": {"write_seconds": 0.4}})
    upstream.behaviour = Behaviour(pieces=lambda seed: ["x" * 20_000_000])
    _, writer = await open_request(gateway, body())
    await upstream.until(lambda: len(upstream.calls) == 1 and not upstream.open_calls)
    async with asyncio.timeout(5):
        await gateway.app.idle()
    writer.close()


async def test_N3_permits_are_taken_together_or_not_at_all(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(config={"n_policy": {"max_n": 8}, "limits": {"inflight_choices": 10, "queue_seconds": 0.1}})
    held = asyncio.Event()
    upstream.behaviour = Behaviour(hold=held)
    first = asyncio.create_task(gateway.ask(n=8))
    await upstream.until(lambda: len(upstream.open_calls) == 8)
    refused = await gateway.ask(n=3)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    envelope(refused)
    assert len(upstream.calls) == 8, "not one call of it was made"
    second = asyncio.create_task(gateway.ask(n=2))
    await upstream.until(lambda: len(upstream.open_calls) == 10)
    held.set()
    assert [(await first).status_code, (await second).status_code] == [200, 200]
    await gauges_return(gateway)


async def test_wider_than_all_permits_is_400_not_429(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(config={"n_policy": {"max_n": 4}, "limits": {"inflight_choices": 8}})
    answer = await gateway.ask("/v1/completions", prompt=["x"] * 3, n=3)
    assert answer.status_code == 400
    assert envelope(answer)["param"] == "n"
    assert upstream.calls == []


async def test_least_loaded_replica(upstream: FakeUpstream) -> None:
    async with FakeUpstream() as other:
        upstreams = [{"name": "fake", "replicas": [upstream.url, other.url], "n": "fanout"}]
        async with gateway_for({"upstreams": upstreams}) as gateway:
            answer = await at_once(gateway.ask(n=6, seed=1), (upstream, 3), (other, 3))
            assert len(answer.json()["choices"]) == 6
        assert (len(upstream.calls), len(other.calls)) == (3, 3)


async def test_a_replica_that_is_down_costs_a_retry_and_no_choice(upstream: FakeUpstream) -> None:
    async with FakeUpstream() as gone:
        gone_url = gone.url
    upstreams = [{"name": "fake", "replicas": [gone_url, upstream.url], "n": "fanout"}]
    async with gateway_for({"upstreams": upstreams}) as gateway:
        for _ in range(3):
            assert len((await gateway.ask(n=4, seed=1)).json()["choices"]) == 4
        text = (await gateway.client.get("/metrics")).text
    assert f'nproxy_replica_up{{replica="{gone_url}",upstream="fake"}} 0.0' in text
    assert f'nproxy_replica_up{{replica="{upstream.url}",upstream="fake"}} 1.0' in text


async def test_a_long_silence_keeps_nothing_of_its_pings(upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    stream = {"ping_seconds": 0.02, "headers_after_seconds": 0.01}
    async with gateway_for({"upstreams": [upstream_settings(upstream)], "stream": stream}) as gateway:
        reader, writer = await open_request(gateway, body(stream=True))
        async with asyncio.timeout(10):
            for _ in range(12):
                await reader.readuntil(b": ping")
        (drive,) = gateway.app.drives
        assert len(drive._timers) <= 2
        writer.close()
        await gauges_return(gateway)
