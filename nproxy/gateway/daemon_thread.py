"""A thread for work that may hang, such as reading from a network file system."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


async def in_daemon_thread(work: Callable[[], _T], name: str) -> _T:
    """Run work in a thread of its own, and return its result or raise its error.

    Unlike a thread of asyncio's executor, it does not keep the process from ending. Raises RuntimeError, and does no
    work, if no thread can be started: then the limit on threads of the process, its user or its control group is
    reached. name: the thread's.
    """
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()  # from now on it cannot be cancelled: the thread sets its result

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(future)
