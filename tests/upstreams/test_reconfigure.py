"""Upstreams take new settings while they run: what stays is left alone, what goes ends with its calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nproxy.choices.lessons import NativeWidth
from nproxy.config import Config
from nproxy.upstreams.upstreams import Upstreams
from nproxy.upstreams.via import Pseudonym


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
