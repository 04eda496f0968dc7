"""A thread beside the event loop, for what would hold all other requests up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Offload:
    """Reads LONG bodies, one at a time: several threads would share one lock with the event loop, and it would wait."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aside")

    async def run(self, work: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Do work there. What nobody waits for any more is not begun."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Let the thread go; what it is at is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)
