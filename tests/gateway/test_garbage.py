"""What is left of a request goes at once: nothing of it holds itself, and so nothing waits for the garbage collector,
which walks all that lives to find it. What is broken off is left to it: an exception that is kept holds frames.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.fakes.upstream import Behaviour, FakeUpstream
from tests.gateway.conftest import Gateway, Start

ANSWERS: Mapping[str, tuple[Mapping[str, Any], Behaviour, int]] = {
    "whole": ({}, Behaviour(), 200),
    "of eight choices": ({"n": 8}, Behaviour(), 200),
    "streamed": ({"stream": True}, Behaviour(), 200),
    "streamed, of eight choices": ({"n": 8, "stream": True}, Behaviour(), 200),
    "streamed, of a server that does not": ({"n": 2, "stream": True}, Behaviour(json_for_stream=True), 200),
    "of a server with n": ({"n": 2, "stream": True}, Behaviour(n="native"), 200),
    "on connections of their own": ({"n": 2}, Behaviour(headers={"Connection": "close"}), 200),
    "of a request that is none": ({"n": "many"}, Behaviour(), 400),
    "of a server that refuses": ({}, Behaviour(status=400), 400),
    "of a server that fails": ({"n": 2}, Behaviour(status=500), 500),
}


@contextmanager
def garbage() -> Iterator[Counter[str]]:
    """What of nproxy's only the collector would free of what this block makes, by type; there once it is left.

    What was there before is left out: a thread of an earlier gateway's may let go of it in the meantime.
    """
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    gc.freeze()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        names = (f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
        found.update(name for name in names if name.startswith("nproxy."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def over(gateway: Gateway) -> None:
    """Until nothing of a request is under way."""
    async with asyncio.timeout(10):
        while gateway.app.inflight:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)  # connections close behind their answers


@pytest.mark.parametrize("name", ANSWERS)
async def test_of_an_answer(start: Start, upstream: FakeUpstream, name: str) -> None:
    fields, upstream.behaviour, status = ANSWERS[name]
    gateway = await start(retries={"per_leg": 0})
    await gateway.ask(**fields)  # what is made once
    with garbage() as found:
        assert (await gateway.ask(**fields)).status_code == status
        await over(gateway)
    assert found == {}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/tokenize"])
async def test_of_what_else_is_asked(start: Start, path: str) -> None:
    gateway = await start()
    await gateway.ask(path)
    with garbage() as found:
        await gateway.ask(path)
        await over(gateway)
    assert found == {}


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/status", "/"])
async def test_of_what_is_looked_at(start: Start, path: str) -> None:
    gateway = await start()
    await gateway.client.get(path)
    with garbage() as found:
        await gateway.client.get(path)
        await over(gateway)
    assert found == {}
