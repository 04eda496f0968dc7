"""Lists are read beside the requests: who waits for which, and for how long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nproxy.concurrency.tasks import beside
from nproxy.upstreams.list_keeper import ListKeeper
from nproxy.upstreams.models import FRESH_SECONDS, ListAnswer, ModelList


class Listed:
    """An upstream with a list that may be held back."""

    def __init__(self, *names: str) -> None:
        self.models = ModelList(None)
        self.names = names
        self.reads = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def list_models(self) -> ListAnswer:
        self.reads += 1
        await self.answers.wait()
        return 200, json.dumps({"data": [{"id": name} for name in self.names]}).encode()


class Keeping:
    """Two upstreams, whose lists are kept."""

    def __init__(self) -> None:
        self.now = 0.0
        self.one, self.other = Listed("a"), Listed("b")
        self.both = self.one.models, self.other.models
        self.keeper = ListKeeper(lambda: (self.one, self.other), lambda: self.now)

    async def read(self) -> None:
        """Have both lists read, as far as they come."""
        self.keeper.want(self.both)
        for _ in range(5):
            await asyncio.sleep(0)


@asynccontextmanager
async def keeping() -> AsyncIterator[Keeping]:
    kept = Keeping()
    async with asyncio.timeout(20), beside(kept.keeper.run()):
        yield kept


async def test_an_idle_gateway_reads_nothing() -> None:
    async with keeping() as kept:
        await asyncio.sleep(0.01)
        assert kept.one.reads == kept.other.reads == 0


async def test_a_list_is_read_once_for_all_who_look_at_it() -> None:
    async with keeping() as kept:
        for _ in range(3):
            await kept.read()
        assert kept.one.reads == kept.other.reads == 1
        kept.now = FRESH_SECONDS
        await kept.read()
        assert kept.one.reads == 2


async def test_a_slow_list_does_not_hold_up_the_others() -> None:
    async with keeping() as kept:
        kept.one.answers.clear()
        await kept.read()
        assert kept.other.models.find("b") is not None and kept.one.models.find("a") is None
        kept.now = FRESH_SECONDS
        await kept.read()
        assert (kept.one.reads, kept.other.reads) == (1, 2)
        kept.one.answers.set()
        await kept.read()
        assert kept.one.models.find("a") is not None


async def test_waiting_ends_when_it_is_no_longer_worth_it() -> None:
    async with keeping() as kept:
        kept.one.answers.clear()
        kept.keeper.want(kept.both)
        await kept.keeper.wait(lambda: 0.0 if kept.other.models.readable else 10.0)
        assert kept.other.models.readable and not kept.one.models.readable


async def test_waiting_ends_with_the_time_that_it_is_worth() -> None:
    async with keeping() as kept:
        kept.one.answers.clear()
        kept.keeper.want(kept.both)
        before = asyncio.get_running_loop().time()
        await kept.keeper.wait(lambda: 0.05)
        assert 0.04 < asyncio.get_running_loop().time() - before < 5


async def test_servers_that_change_during_a_reading_have_the_list_read_again() -> None:
    async with keeping() as kept:
        kept.one.answers.clear()
        await kept.read()
        kept.one.models.outdated()
        kept.one.names = ("new",)
        kept.one.answers.set()
        await kept.read()
        assert kept.one.reads == 2 and kept.one.models.find("new") is not None
