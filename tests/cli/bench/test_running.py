"""The two loops, with a send that ends when the test says so and a clock that stands where the test puts it."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from nproxy.cli.bench.measuring import until_set
from nproxy.cli.bench.running import closed_loop, open_loop
from nproxy.cli.bench.schedule import Extent


class Server:
    """Answers nothing before it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[tuple[int, float]] = []
        self.in_flight = 0
        self.answers = asyncio.Semaphore(0)
        self._pulse = asyncio.Event()

    def clock(self) -> float:
        return self.now

    async def send(self, number: int, due: float) -> None:
        self.sent.append((number, due))
        self.in_flight += 1
        self._pulse.set()
        await self.answers.acquire()
        self.in_flight -= 1

    async def until_sent(self, number: int) -> None:
        async with asyncio.timeout(30):
            while len(self.sent) < number:
                self._pulse.clear()
                await self._pulse.wait()


async def test_a_closed_loop_sends_when_another_has_ended() -> None:
    server = Server()
    async with asyncio.TaskGroup() as group:
        group.create_task(closed_loop(3, Extent(5, None), server.send, server.clock))
        await server.until_sent(3)
        for sent in (4, 5):
            assert server.in_flight == 3
            server.now += 1
            server.answers.release()
            await server.until_sent(sent)
        for _ in range(3):
            server.answers.release()
    assert server.sent == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2)]


async def test_a_closed_loop_sends_nothing_when_its_time_is_over_and_waits_for_what_is_out() -> None:
    server = Server()
    async with asyncio.TaskGroup() as group:
        loop = group.create_task(closed_loop(2, Extent(None, 10.0), server.send, server.clock))
        await server.until_sent(2)
        server.now = 9.0
        server.answers.release()
        await server.until_sent(3)
        server.now = 10.0
        server.answers.release()
        await asyncio.sleep(0)
        assert not loop.done()
        server.answers.release()
    assert server.sent == [(0, 0), (1, 0), (2, 9)]


async def test_an_open_loop_waits_for_no_answer() -> None:
    """All of them are out though none was answered, and each is due when it was, not when it was sent."""
    server = Server()
    server.now = 50.0  # later than all of them are due: nothing is left to wait for
    due = [0.0, 0.0, 0.0]
    async with asyncio.TaskGroup() as group:
        loop = group.create_task(open_loop(iter(due), server.send, server.clock))
        await server.until_sent(3)
        assert server.in_flight == 3
        assert not loop.done()
        for _ in due:
            server.answers.release()
    assert server.sent == [(0, 50.0), (1, 50.0), (2, 50.0)]


async def test_an_open_loop_that_is_late_keeps_what_was_due() -> None:
    """A clock that jumps by an hour at each look: everything is late, and due at its own time."""
    server = Server()
    hours = count(0, 3600)
    for _ in range(3):
        server.answers.release()
    await open_loop(iter([0.0, 1.0, 2.5]), server.send, lambda: float(next(hours)))
    assert server.sent == [(0, 0.0), (1, 1.0), (2, 2.5)]


async def test_an_open_loop_sends_nothing_before_it_is_due() -> None:
    sent_at: list[float] = []
    loop = asyncio.get_running_loop()

    async def send(number: int, due: float) -> None:
        sent_at.append(loop.time() - due)

    await open_loop(iter([0.0, 0.02, 0.04]), send, loop.time)
    assert len(sent_at) == 3
    assert all(late >= -0.002 for late in sent_at)  # a timer's own grain


async def test_work_ends_when_told_or_by_itself() -> None:
    told = asyncio.Event()
    assert not await until_set(asyncio.sleep(0), told)
    told.set()
    assert await until_set(asyncio.sleep(60), told)


async def test_what_work_raises_is_raised() -> None:
    async def fails() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await until_set(fails(), asyncio.Event())
