"""Threads for work that may hang: reading from a network file system, looking up names."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def start_daemon_thread(work: Callable[[], _T], name: str) -> Future[_T]:
    """Start work in a thread of its own. Returns its future result, which cannot be cancelled.

    Unlike a thread of asyncio's executor, it does not keep the process from ending. Raises RuntimeError, and does no
    work, if no thread can be started: then the limit on threads of the process, its user or its control group is
    reached. name: the thread's.
    """
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


async def in_daemon_thread(work: Callable[[], _T], name: str) -> _T:
    """Do work in a thread of its own, and return its result or raise its error; see `start_daemon_thread`."""
    return await asyncio.wrap_future(start_daemon_thread(work, name))
