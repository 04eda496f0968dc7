"""Work that several ask for at once, and that is done once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SharedRuns(Generic[K, T]):
    """Runs `work` once at a time for each key, however many ask for it.

    Who asks while it runs waits for the next run, as a result must not be older than the question. A run goes on if
    nobody waits for it any more.
    """

    def __init__(self, work: Callable[[K], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._running: dict[K, asyncio.Task[T]] = {}
        self._next: dict[K, asyncio.Task[T]] = {}

    async def result(self, key: K) -> T:
        """Return the result of a run that begins from now on. Raises what the run raises."""
        run = self._next.get(key)
        if run is None:
            run = self._next[key] = asyncio.create_task(self._run(key, self._running.get(key)))
            run.add_done_callback(_retrieve)
        return await asyncio.shield(run)

    async def _run(self, key: K, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._running[key] = self._next.pop(key)
        try:
            return await self._work(key)
        finally:
            del self._running[key]  # with its result, which may be long


def _retrieve(run: asyncio.Task[Any]) -> None:
    """Take note of an error that nobody may be there to be told of: asyncio would log it."""
    if not run.cancelled():
        run.exception()
