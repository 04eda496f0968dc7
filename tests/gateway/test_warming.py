"""`prefix_cache` over the wire: one replica, one leg first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.upstream import Behaviour, FakeUpstream, words
from tests.gateway.conftest import Start, gateway_for


async def test_N6_siblings_start_at_the_first_token(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(prefix_cache=True)
    upstream.behaviour = first = Behaviour(hold_after=2)  # a role and one piece
    asked = asyncio.create_task(gateway.stream(n=4, seed=1))
    await upstream.until(lambda: len(upstream.calls) == 4)
    first.go_on.set()
    answer = await asked
    assert answer.texts == {index: "".join(words(index + 1)) for index in range(4)}
    assert answer.done


async def test_N6_before_it_there_is_one_call(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(prefix_cache=True)
    held = asyncio.Event()
    upstream.script(Behaviour(hold=held))
    asked = asyncio.create_task(gateway.ask(n=4, seed=1))
    await upstream.until(lambda: bool(upstream.calls))
    assert (await gateway.client.get("/status")).json()["upstreams"][0]["replicas"][0]["legs"] == 1
    assert len(upstream.calls) == 1
    held.set()
    answer = (await asked).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["".join(words(s)) for s in range(1, 5)]
    assert answer["usage"]["completion_tokens"] == 16
    assert [call.body.get("stream", False) for call in upstream.calls] == [True, False, False, False]


@pytest.mark.parametrize("parallel", ["auto", 1])
async def test_Q3_all_legs_on_one_replica(parallel: Any) -> None:
    async with FakeUpstream() as one, FakeUpstream() as other:
        settings = {"name": "pair", "replicas": [one.url, other.url], "n": "fanout", "parallel": parallel}
        async with gateway_for({"upstreams": [{**settings, "prefix_cache": True}]}) as gateway:
            for _ in range(4):
                before = len(one.calls), len(other.calls)
                assert len((await gateway.ask(n=4)).json()["choices"]) == 4
                assert (len(one.calls) - before[0], len(other.calls) - before[1]) in ((4, 0), (0, 4))
            assert one.calls and other.calls, "requests take turns"
        async with gateway_for({"upstreams": [settings]}) as gateway:
            before = len(one.calls)
            await gateway.ask(n=4)
            assert len(one.calls) - before == 2, "without it the legs are spread"


async def test_Q3_a_replica_that_cannot_be_reached_is_left_together() -> None:
    async with FakeUpstream() as gone:
        pass
    async with FakeUpstream() as there:
        settings = {"name": "pair", "replicas": [gone.url, there.url], "n": "fanout", "prefix_cache": True}
        async with gateway_for({"upstreams": [settings]}) as gateway:
            for _ in range(3):
                assert (await gateway.ask(n=4)).status_code == 200
    assert len(there.calls) == 12
