"""A call that is given up from outside: at once while it waits, and never what others do to its task."""

from __future__ import annotations

import asyncio

import pytest

from nproxy.upstreams.cancel_handle import CancelHandle, GivenUpError


class Waiting:
    """A task that waits under a cancel handle."""

    def __init__(self) -> None:
        self.all: set[CancelHandle] = set()
        self.waits = asyncio.Event()
        self.cleaned = False
        self.task = asyncio.create_task(self._wait())

    async def _wait(self) -> str:
        self.handle = handle = CancelHandle(self.all)
        try:
            with handle:
                self.waits.set()
                await asyncio.sleep(3600)
        except GivenUpError:
            await asyncio.sleep(0)  # the task is as good as new
            return "given up"
        finally:
            self.cleaned = True
        return "ended"


async def test_what_waits_is_given_up_at_once() -> None:
    waiting = Waiting()
    await waiting.waits.wait()
    waiting.handle.cut()
    waiting.handle.cut()
    assert await waiting.task == "given up" and waiting.cleaned


async def test_a_cancellation_by_others_stays_one() -> None:
    for cut in (False, True):
        waiting = Waiting()
        await waiting.waits.wait()
        if cut:
            waiting.handle.cut()
        waiting.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting.task


async def test_it_is_found_while_its_call_is_made() -> None:
    waiting = Waiting()
    assert not waiting.all
    await waiting.waits.wait()
    assert waiting.all == {waiting.handle}
    waiting.handle.cut()
    await waiting.task
    assert not waiting.all


async def test_what_is_whole_is_not_given_up() -> None:
    handle = CancelHandle(set())
    with handle:
        handle.whole = True
        handle.cut()
        await asyncio.sleep(0)
    handle = CancelHandle(set())
    with handle:
        pass
    handle.cut()
    await asyncio.sleep(0)


async def test_what_is_whole_in_the_moment_in_which_it_is_given_up_is_whole() -> None:
    waiting = Waiting()
    await waiting.waits.wait()
    waiting.handle.cut()
    waiting.handle.whole = True
    assert await waiting.task == "ended"
    assert waiting.task.cancelling() == 0


async def test_other_errors_pass() -> None:
    handle = CancelHandle(set())
    with pytest.raises(ValueError, match="x"), handle:
        raise ValueError("x")
