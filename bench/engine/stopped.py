"""Servers that are not asked stand still: some look for work all the time, and would take it from the one that is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import psutil

_SETTLE_SECONDS = 0.3


@contextmanager
def stopped(pids: Iterable[int]) -> Iterator[None]:
    """Meanwhile these processes, and all below them, are stopped by SIGSTOP; they go on behind it."""
    family = [one for pid in pids for one in _family(pid)]
    try:
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.suspend()
        time.sleep(_SETTLE_SECONDS)  # what the asked one's threads do after they could go on
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
