"""A thread beside the event loop, for work that would delay all other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Offload:
    """One thread, which does one piece of work after the other, also if whoever wanted it has left meanwhile.

    More threads would compete with the event loop for the GIL, and delay it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="offload")

    async def run(self, work: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Run work in the thread, and return its result. If the caller is cancelled before it begins, it is not run."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Release the thread, without waiting for its current work."""
        self._thread.shutdown(wait=False, cancel_futures=True)
