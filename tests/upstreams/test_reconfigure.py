"""Upstreams take new settings while they run: what stays is left alone, what goes ends with its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nproxy.choices.lessons import NativeWidth
from nproxy.config import Config
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.overload.peer_workers import PeerNews
from nproxy.upstreams.upstreams import Upstreams
from nproxy.upstreams.via import Pseudonym
from tests.upstreams.held import held


def config(*upstreams: dict[str, Any]) -> Config:
    return Config.model_validate({"upstreams": [{"replicas": ["http://127.0.0.1:9/v1"], **one} for one in upstreams]})


@asynccontextmanager
async def running(first: Config) -> AsyncIterator[Upstreams]:
    upstreams = Upstreams(first, None, Pseudonym())
    async with upstreams.kept():
        yield upstreams
    await upstreams.close()


async def test_what_stays_is_left_alone_and_new_ones_are_made() -> None:
    async with running(config({"name": "a"}, {"name": "b"})) as upstreams:
        a, b = upstreams.all
        client, replica = a.client, a.gate.replicas[0]
        upstreams.reconfigure(config({"name": "c"}, {"name": "a"}))
        c = upstreams.by_name["c"]
        assert upstreams.all == (c, a), "the file's order, and b is gone"
        assert a.client is client and a.gate.replicas[0] is replica
        assert b.gate.replicas, "a request that still holds it can end"


async def test_capabilities_count_the_replicas_that_there_are_now() -> None:
    both = ["http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1"]
    async with running(config({"name": "a", "parallel": 2})) as upstreams:
        (a,) = upstreams.all
        assert a.capabilities.snapshot("m", None).parallel == 2
        upstreams.reconfigure(config({"name": "a", "parallel": 2, "replicas": both}))
        assert a.capabilities.snapshot("m", None).parallel == 4


async def test_the_same_object_takes_new_settings() -> None:
    async with running(config({"name": "a", "parallel": 4})) as upstreams:
        (a,) = upstreams.all
        gate, (replica,), capabilities = a.gate, a.gate.replicas, a.capabilities
        capabilities.learn("m", NativeWidth(2, 2))
        new = {"name": "a", "parallel": 4, "timeouts": {"idle": 7}, "retries": {"budget": 0.5}}
        upstreams.reconfigure(config(new))
        assert upstreams.all == (a,) and a.gate is gate
        assert a.timeouts.idle == 7 and a.budget.share == 0.5
        assert a.capabilities is capabilities, "nothing that it learned has changed"
        upstreams.reconfigure(config({**new, "parallel": 2, "replicas": ["http://127.0.0.1:9/v1", "http://b/v1"]}))
        assert gate.policy.parallel == 2 and gate.replicas[0] is replica and len(gate.replicas) == 2
        assert a.capabilities is not capabilities
        assert a.capabilities.snapshot("m", None).parallel == 4, "on both replicas together"


async def test_the_only_upstream_stands_for_any_model_while_it_is_the_only_one() -> None:
    one, two = config({"name": "a"}), config({"name": "a"}, {"name": "b", "models": ["m"]})
    async with running(one) as upstreams:
        assert (await upstreams.route("made-up")).upstream is upstreams.by_name["a"]
        upstreams.reconfigure(two)
        assert (await upstreams.route("m")).upstream is upstreams.by_name["b"]


async def test_other_processes_hear_of_waiting_legs_at_old_and_at_new_upstreams() -> None:
    async with running(config({"name": "a"})) as upstreams:
        told: list[PeerNews] = []
        upstreams.share_room("w0", told.append)
        upstreams.reconfigure(config({"name": "a"}, {"name": "b"}))
        waiting = [
            asyncio.create_task(one.gate.attempt(1, CallGroup(account=("m", "key")), waits=True).acquire())
            for one in upstreams.all
        ]
        await asyncio.sleep(0)
        news = [PeerNews(name, "m", "key", "waits", "w0") for name in "ab"]
        assert told == news
        upstreams.remind()
        assert told == news * 2
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        assert [one.what for one in told[4:]] == ["waits_no_more"] * 2


async def test_a_new_leg_waits_while_legs_of_another_process_do() -> None:
    async with running(config({"name": "a"})) as upstreams:
        upstreams.share_room("w0", lambda news: None)
        gate = upstreams.by_name["a"].gate
        async with held(gate.attempt(1, CallGroup(account=("m", "key")))):
            upstreams.take_news(PeerNews("gone", "m", "key", "waits", "w1"))
            upstreams.take_news(PeerNews("a", "m", "key", "waits", "w1"))
            second = asyncio.create_task(gate.attempt(1, CallGroup(account=("m", "key"))).acquire())
            await asyncio.sleep(0)
            assert gate.waiting == 1
            second.cancel()
            await asyncio.wait([second])
