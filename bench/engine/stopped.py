"""Stop the servers that are not asked: some poll for work all the time, and would take CPU time from the one asked."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import psutil

_SETTLE_SECONDS = 0.3


@contextmanager
def stopped(pids: Iterable[int]) -> Iterator[None]:
    """Stop these processes and all their descendants with SIGSTOP, and continue them on exit."""
    family = [one for pid in pids for one in _family(pid)]
    try:
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.suspend()
        time.sleep(_SETTLE_SECONDS)  # time for the remaining server's threads to finish what they still have to do
        yield
    finally:
        for one in reversed(family):
            with suppress(psutil.NoSuchProcess):
                one.resume()


def _family(pid: int) -> list[psutil.Process]:
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
