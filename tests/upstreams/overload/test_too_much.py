"""Requests that are turned away whatever room there is, as one that wants more tokens than are had in a minute."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.upstreams.overload.full_server import ACCOUNT, Refused, Server, play

CLIENTS, ANSWER = 20, 0.2


async def served(server: Server, seconds: float, *, clients: int = CLIENTS, n: int = 1) -> float:
    """How many requests are served in a second, of clients that always have one under way. None is refused."""
    until, done = server.now + seconds, 0

    async def client() -> None:
        nonlocal done
        while server.now < until:
            await server.request(n, seconds=ANSWER * random.uniform(0.8, 1.2))
            done += 1

    await asyncio.gather(*(client() for _ in range(clients)))
    return done / seconds


async def asks_too_much(server: Server, n: int, told: list[float]) -> None:
    """A client that does so again and again. told: takes how long each time it was refused after."""
    while True:
        since = server.now
        with pytest.raises(Refused):
            await server.request(n, too_much=True)
        told.append(server.now - since)
        await asyncio.sleep(0.5)


@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("wait", [None, 1.0])
@pytest.mark.parametrize("sure", [True, False])
def test_they_are_in_nobodys_way_and_are_told(n: int, wait: float | None, sure: bool) -> None:
    async def scene() -> None:
        random.seed(7)
        server = Server(1000, ANSWER, sure=sure, wait=wait)
        told: list[float] = []
        asking = asyncio.create_task(asks_too_much(server, n, told))
        assert await served(server, 20.0) > 0.75 * CLIENTS / ANSWER
        asking.cancel()
        assert max(told) < 6.0

    play(scene)


def test_not_even_a_few_of_them() -> None:
    async def scene() -> None:
        random.seed(7)
        server = Server(1000, ANSWER)
        asking = [asyncio.create_task(asks_too_much(server, 1, [])) for _ in range(3)]
        assert await served(server, 20.0) > 0.5 * CLIENTS / ANSWER
        for task in asking:
            task.cancel()

    play(scene)


@pytest.mark.parametrize("room", [1, 4])
def test_at_a_full_server_too(room: int) -> None:
    async def scene() -> None:
        random.seed(7)
        server = Server(room, ANSWER)
        asking = asyncio.create_task(server.request(4, too_much=True))
        assert await served(server, 20.0) > 0.9 * room / ANSWER
        with pytest.raises(Refused):
            await asking

    play(scene)


def test_those_that_only_have_bad_luck_are_not_taken_for_such() -> None:
    """One in three calls fails, and there is little room: nobody is told before its time."""

    async def scene() -> None:
        draw = random.Random(3)
        server = Server(4, ANSWER, odd=lambda number: draw.random() < 0.3)
        ends = await asyncio.gather(*(server.request(1) for _ in range(120)), return_exceptions=True)
        assert [end for end in ends if isinstance(end, Refused) and end.args[0] < server.gate.patience] == []
        assert not server.gate.queues.of(ACCOUNT).waiting

    play(scene)


@pytest.mark.parametrize(("room", "late"), [(2, 0.03), (4, 0.03), (8, 0.1)])
def test_nor_are_those_whose_other_legs_are_being_answered(room: int, late: float) -> None:
    async def scene() -> None:
        random.seed(11)
        assert await served(Server(room, ANSWER, late=late), 60.0, clients=2, n=8) > 0.6 * room / 8 / (ANSWER + late)

    play(scene)


def test_a_replica_that_asks_for_a_long_pause_has_nobody_told_whom_another_one_serves() -> None:
    """That one asks for a pause as well, a short one."""

    async def scene() -> None:
        random.seed(5)
        server = Server({"r0": 2, "r1": 0}, ANSWER, count=2, wait={"r0": 1.0, "r1": 12.0})
        assert await served(server, 20.0, clients=3, n=4) > 0.6 * 2 / 4 / ANSWER

    play(scene)
