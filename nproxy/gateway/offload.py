"""A thread beside the event loop, for work that would delay all other requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Offload:
    """One thread, which does one piece of work after the other, also if whoever wanted it has left meanwhile.

    More threads would compete with the event loop for the GIL, and delay it. Callers take turns, so who asks for much
    work does not delay the others by more than the piece that has begun.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="offload")
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by bucket, in the order of their turns
        self._busy = False

    async def run(self, bucket: str, work: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Run work in the thread, and return its result. If the task is cancelled before it begins, it is not run.

        bucket: of the caller for whom this is done.
        """
        async with self._turn(bucket):
            return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*args, **kwargs))

    @asynccontextmanager
    async def _turn(self, bucket: str) -> AsyncGenerator[None]:
        """Wait until it is the caller's turn, and give it to the next one in the end."""
        if self._busy:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(bucket, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # it was given the turn at the same time
                    self._next()
                raise
        self._busy = True
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        """Give the turn to the caller who has waited longest for one; those who have left are passed over."""
        while self._waiting:
            bucket, turns = next(iter(self._waiting.items()))
            del self._waiting[bucket]
            turn = turns.popleft()
            if turns:
                self._waiting[bucket] = turns  # behind all others
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False

    def close(self) -> None:
        """Release the thread, without waiting for its current work."""
        self._thread.shutdown(wait=False, cancel_futures=True)
