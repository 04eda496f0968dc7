"""Work that is done once for all who ask."""

from __future__ import annotations

import asyncio

import pytest

from nproxy.concurrency.shared_runs import SharedRuns


class Work:
    """Goes on until it is let go, and counts its runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.at_once = self.most_at_once = 0
        self.go = asyncio.Event()

    async def run(self, key: str) -> tuple[str, int]:
        self.runs += 1
        number = self.runs
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.go.wait()
        finally:
            self.at_once -= 1
        if key == "bad":
            raise ValueError(key)
        return key, number


async def ask(shared: SharedRuns[str, tuple[str, int]], key: str = "a") -> asyncio.Task[tuple[str, int]]:
    task = asyncio.create_task(shared.result(key))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


async def test_who_asks_while_it_runs_shares_the_next_run() -> None:
    work = Work()
    shared = SharedRuns(work.run)
    first, *others = [await ask(shared) for _ in range(10)]
    assert work.runs == 1
    work.go.set()
    assert await first == ("a", 1)
    assert await asyncio.gather(*others) == 9 * [("a", 2)]
    assert (work.runs, work.most_at_once) == (2, 1)
    assert not shared._running and not shared._next


async def test_keys_have_nothing_to_do_with_each_other() -> None:
    work = Work()
    shared = SharedRuns(work.run)
    tasks = [await ask(shared, key) for key in ("a", "b")]
    work.go.set()
    assert await asyncio.gather(*tasks) == [("a", 1), ("b", 2)] and work.most_at_once == 2


async def test_who_leaves_stops_it_for_nobody() -> None:
    work = Work()
    shared = SharedRuns(work.run)
    running, leaving, waiting = [await ask(shared) for _ in range(3)]
    running.cancel()
    leaving.cancel()
    work.go.set()
    assert await waiting == ("a", 2) and running.cancelled() and leaving.cancelled()
    assert await shared.result("a") == ("a", 3)


async def test_all_are_told_of_an_error_and_the_next_run_is_another(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    shared = SharedRuns(work.run)
    left, first, second = [await ask(shared, "bad") for _ in range(3)]
    left.cancel()
    work.go.set()
    assert all(isinstance(e, ValueError) for e in await asyncio.gather(first, second, return_exceptions=True))
    with pytest.raises(ValueError, match="bad"):
        await shared.result("bad")
    assert work.runs == 3 and not caplog.records
