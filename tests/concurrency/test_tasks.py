"""Work side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from nproxy.concurrency.tasks import first_wanted, within

ended: list[str] = []


def work(name: str, seconds: float, *, good: bool = True) -> Callable[[], Coroutine[None, None, tuple[str, bool]]]:
    async def run() -> tuple[str, bool]:
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append(name)
        return name, good

    return run


def is_good(result: tuple[str, bool]) -> bool:
    return result[1]


@pytest.fixture(autouse=True)
def _nothing_ended() -> None:
    ended.clear()


async def test_the_first_good_result_ends_the_others() -> None:
    async with asyncio.timeout(5):
        told = await first_wanted([work("slow", 60), work("bad", 0, good=False), work("good", 0.01)], is_good)
    assert told == ("good", True)
    assert ended == ["bad", "good", "slow"]


async def test_without_a_good_one_it_is_the_last() -> None:
    assert await first_wanted([work("a", 0.02, good=False), work("b", 0, good=False)], is_good) == ("a", False)
    assert await first_wanted([], is_good) is None


async def test_one_that_answers_in_time_is_alone() -> None:
    assert await first_wanted([work("a", 0), work("b", 0)], is_good, apart=60) == ("a", True)
    assert ended == ["a"]


async def test_the_next_one_begins_when_one_has_ended_or_takes_long() -> None:
    async with asyncio.timeout(5):
        assert await first_wanted([work("bad", 0, good=False), work("b", 0)], is_good, apart=60) == ("b", True)
        assert await first_wanted([work("slow", 60), work("b", 0)], is_good, apart=0.01) == ("b", True)


async def test_all_end_with_who_waits() -> None:
    slow = first_wanted([work("a", 60), work("b", 60)], is_good)
    waiting = asyncio.create_task(slow)
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert sorted(ended) == ["a", "b"]


async def test_what_comes_in_time_and_first() -> None:
    assert await within(60, work("a", 0)())
    assert await within(60, work("a", 0)(), work("slow", 60)()) and ended == ["a", "a", "slow"]
    assert await within(None, work("a", 0)())


async def test_what_comes_late_or_behind_another_is_cancelled() -> None:
    assert not await within(0.01, work("slow", 60)(), work("too", 60)()) and sorted(ended) == ["slow", "too"]
    assert not await within(None, work("slow", 60)(), work("b", 0)()) and ended[2:] == ["b", "slow"]
