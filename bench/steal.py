"""What a virtual machine was not given of its processors, and measuring again where that was much."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import TypeVar

import psutil

TRIES = 3
SHARE = 0.05
"""Of the processors' time: beyond that a figure says little."""

_Found = TypeVar("_Found")


def stolen() -> float:
    """Seconds of its processors that this machine was not given, by the kernel's account; 0 where it keeps none."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def undisturbed(
    tries: Iterable[Callable[[], _Found]],
    stolen: Callable[[], float] = stolen,
    settled: Callable[[_Found], bool] = lambda _: False,
) -> tuple[_Found, float]:
    """What the first of `tries` finds that ran on a machine which was all ours, or else the least disturbed; and the
    share of the processors' time that was not the machine's then. The others do not count, and whoever waits is told.

    settled: what has to be kept, however it came about.
    """
    found: list[tuple[float, _Found]] = []
    for measure in tries:
        began, before = time.perf_counter(), stolen()
        one = measure()
        share = (stolen() - before) / (time.perf_counter() - began) / (psutil.cpu_count() or 1)
        if settled(one):
            return one, share
        found.append((share, one))
        if share <= SHARE:
            break
        print(f"  {share:.0%} of the processors' time was not the machine's", file=sys.stderr, flush=True)
    share, best = min(found, key=itemgetter(0))
    return best, share
