"""Room that others use, too: another gateway, or a client that asks the server itself; in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable

import pytest

from tests.upstreams.overload.full_server import Refused, Server, play

PATIENCE = 10.0


async def others(server: Server, at: float, seconds: float) -> None:
    """Somebody else has one place in the room for a while."""
    await asyncio.sleep(at)
    server.inside["r0"] = server.inside.get("r0", 0) + 1
    await asyncio.sleep(seconds)
    server.inside["r0"] -= 1


@pytest.mark.parametrize("sure", [True, False])
@pytest.mark.parametrize("n", [1, 4])
def test_who_finds_others_there_waits_where_the_server_answered_of_late(sure: bool, n: int) -> None:
    async def scene() -> None:
        server = Server(1, sure=sure)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(others(server, 1.5, 5.0))
            assert await server.request(1) == 1.0
            whole = await server.request(n, at=2.0)
        assert 6.5 + n <= whole < 6.5 + n + 4.0
        assert len(server.refusals) <= 7 + 2 * n

    play(scene)


def test_it_is_told_at_once_where_the_server_has_not_answered_for_long() -> None:
    async def scene() -> None:
        server = Server(1)
        await server.request(1)
        server.room = 0
        with pytest.raises(Refused) as refused:
            await server.request(2, at=PATIENCE + 1)
        assert refused.value.args[0] < PATIENCE + 2.5, "one comes again, once"

    play(scene)


def test_it_is_told_after_a_while_where_the_server_answers_no_more() -> None:
    """As one whose quota is used up: who comes in the first seconds behind that cannot know. Then all are told."""

    async def scene() -> None:
        server = Server(1)
        await server.request(1)
        server.room = 0
        told = await asyncio.gather(*(server.request(2, at=at) for at in (0.1, 3.0, 9.0, 25.0)), return_exceptions=True)
        ends = [one.args[0] for one in told if isinstance(one, Refused)]
        assert [round(end - 1.0) for end in ends] == [10, 10, 10, 25]

    play(scene)


def test_two_gateways_share_a_server() -> None:
    """Each finds the other's calls there now and then, and none of its own. With one gateway all are answered."""

    async def scene() -> None:
        one = Server(1)
        two = Server(1, beside=one)
        at, draw = 0.0, random.Random(1)
        work: list[Awaitable[float]] = []
        while at < 200:
            at += draw.expovariate(0.6)
            work.append(draw.choice([one, two]).request(1, at=at, seconds=draw.uniform(0.5, 1.5)))
        refused = [end for end in await asyncio.gather(*work, return_exceptions=True) if isinstance(end, Refused)]
        assert len(refused) <= 0.05 * len(work)

    play(scene)


def test_short_answers_are_a_reason_to_find_out_sooner() -> None:
    async def scene() -> None:
        server = Server(2, 0.1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(others(server, 0.0, 33.0))
            await asyncio.sleep(0.01)
            whole = await server.request(430)
        assert 33.0 + 0.05 * 100 <= whole < 33.0 + 0.05 * 100 + 1.5

    play(scene)
