"""Work that runs beside a block, or side by side with other work of its kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def beside(*work: Coroutine[None, None, object]) -> AsyncIterator[None]:
    """Run coroutines while the block runs, and no longer.

    An error on either side ends the other, and is raised as it is.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as failures:
        if len(failures.exceptions) > 1:
            raise
        raise failures.exceptions[0] from None  # a single error is not wrapped in a group


async def within(
    seconds: float | None, done: Coroutine[Any, Any, object], *instead: Coroutine[Any, Any, object]
) -> bool:
    """Whether `done` completes within so many seconds, and before any of `instead` does. The rest is cancelled.

    seconds: None for no limit.
    """
    async with asyncio.TaskGroup() as group:
        wanted, *others = [group.create_task(one) for one in (done, *instead)]
        await asyncio.wait((wanted, *others), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        came = wanted.done()
        for task in (wanted, *others):
            task.cancel()
    return came


async def first_wanted(
    work: Iterable[Callable[[], Coroutine[Any, Any, T]]], wanted: Callable[[T], bool], *, apart: float = 0.0
) -> T | None:
    """Run coroutines side by side; return the first result that is wanted, and cancel the others.

    If none is wanted, the last result; None if there is no work. apart: each one starts so many seconds after the one
    before it, or when one has ended.
    """
    result: T | None = None
    async with asyncio.TaskGroup() as group:
        under_way: set[asyncio.Task[T]] = set()
        ahead = list(work)[::-1]
        while ahead or under_way:
            if ahead:
                under_way.add(group.create_task(ahead.pop()()))
            limit = apart if ahead else None
            done, under_way = await asyncio.wait(under_way, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                result = task.result()
                if wanted(result):
                    for other in under_way:
                        other.cancel()
                    return result
    return result
