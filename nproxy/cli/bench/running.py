"""The two loops that send requests. They know neither HTTP nor prompts, and the clock is passed in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from nproxy.cli.bench.schedule import Extent

Send = Callable[[int, float], Awaitable[None]]
"""Sends the request with a number, counted from 0, that was due at a time, and waits for its end; never raises."""


async def closed_loop(concurrency: int, extent: Extent, send: Send, clock: Callable[[], float]) -> None:
    """Keep so many requests in flight until the extent is reached, then wait for the last one.

    A slow answer delays the requests after it, so latencies say little of what other clients would have waited
    (coordinated omission): this loop is for throughput, the open one for latencies.
    """
    numbers = _numbers(extent, clock, clock())

    async def one_after_the_other() -> None:
        for number in numbers:
            await send(number, clock())

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(one_after_the_other())


async def open_loop(due: Iterator[float], send: Send, clock: Callable[[], float]) -> None:
    """Send a request at each of these times, in seconds from now, whether or not others have ended; wait for all."""
    start = clock()
    async with asyncio.TaskGroup() as group:
        for number, at in enumerate(due):
            await asyncio.sleep(max(0.0, start + at - clock()))
            group.create_task(_sent(send, number, start + at))


async def _sent(send: Send, number: int, due: float) -> None:
    await send(number, due)


def _numbers(extent: Extent, clock: Callable[[], float], start: float) -> Iterator[int]:
    number = 0
    while (extent.requests is None or number < extent.requests) and (
        extent.seconds is None or clock() - start < extent.seconds
    ):
        yield number
        number += 1
