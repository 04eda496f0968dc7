"""Q3 and N6: if siblings share a prompt's cache, they are on one replica, and one call goes first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance.scene import Scene
from tests.conformance.settings import everywhere, of_legs, settings
from tests.fakes.behaviour import Behaviour
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import gateway_for

of_replicas = settings(why="it is about several replicas")


@of_legs
async def test_N6_siblings_start_at_the_first_token(scene: Scene) -> None:
    await scene.start(prefix_cache=True)
    first = scene.does(hold_after=2)  # a role and one piece
    asked = asyncio.create_task(scene.stream())
    await scene.upstream.until(lambda: len(scene.calls) == 3)
    first.go_on.set()
    assert (await asked).texts == scene.said


@of_legs
async def test_N6_before_it_there_is_one_call(scene: Scene) -> None:
    gateway = await scene.start(prefix_cache=True)
    held = asyncio.Event()
    scene.first_call_does(hold=held)
    asked = asyncio.create_task(scene.whole())
    await scene.upstream.until(lambda: bool(scene.calls))
    assert (await gateway.client.get("/status")).json()["upstreams"][0]["replicas"][0]["legs"] == 1
    assert len(scene.calls) == 1
    held.set()
    answer = await asked
    assert answer.texts == scene.said
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == 12
    assert [call.body.get("stream", False) for call in scene.calls] == [True, False, False]


@of_legs
async def test_N6_a_first_call_that_is_refused_as_a_stream_is_made_whole(scene: Scene) -> None:
    await scene.start(prefix_cache=True)
    refusal = b'{"error": {"code": 500, "message": "Cannot use tools with stream", "type": "server_error"}}'
    scene.upstream.choose = lambda call: Behaviour(status=500, body=refusal) if call.body.get("stream") else None
    answer = await scene.whole(tools=[{"type": "function", "function": {"name": "f"}}])
    assert answer.texts == scene.said and answer.usage is not None
    assert len(scene.calls) == 1 + scene.legs
    assert all({"stream", "stream_options"}.isdisjoint(call.body) for call in scene.calls[1:])


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_N6_a_first_call_that_fails_does_not_hold_its_siblings(scene: Scene, stream: bool) -> None:
    await scene.start(prefix_cache=True)
    scene.first_call_does(status=503)
    assert (await scene.either(stream)).texts == scene.said
    assert len(scene.calls) == scene.legs + 1


@of_replicas
@pytest.mark.parametrize("parallel", ["auto", 1])
async def test_Q3_all_calls_on_one_replica(parallel: Any) -> None:
    async with FakeUpstream() as one, FakeUpstream() as other:
        pair = {"name": "pair", "replicas": [one.url, other.url], "n": "fanout", "parallel": parallel}
        async with gateway_for({"upstreams": [{**pair, "prefix_cache": True}]}) as gateway:
            for _ in range(20):
                before = len(one.calls), len(other.calls)
                assert len((await gateway.ask(n=4)).json()["choices"]) == 4
                assert (len(one.calls) - before[0], len(other.calls) - before[1]) in ((4, 0), (0, 4))
            assert one.calls and other.calls, "requests are spread"
        async with gateway_for({"upstreams": [pair]}) as gateway:
            before = len(one.calls), len(other.calls)
            await gateway.ask(n=4)
            # Calls are made one at a time, so the first free replica takes the next.
            assert min(len(one.calls) - before[0], len(other.calls) - before[1]) > 0, "without it the calls are spread"


@of_replicas
async def test_Q3_a_replica_that_cannot_be_reached_is_left_together() -> None:
    async with FakeUpstream() as gone:
        pass
    async with FakeUpstream() as there:
        pair = {"name": "pair", "replicas": [gone.url, there.url], "n": "fanout", "prefix_cache": True}
        async with gateway_for({"upstreams": [pair]}) as gateway:
            for _ in range(3):
                assert (await gateway.ask(n=4)).status_code == 200
    assert len(there.calls) == 12
