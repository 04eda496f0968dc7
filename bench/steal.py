"""Steal time: what the hypervisor withheld from a virtual machine, and repeating a measurement if it was much."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import TypeVar

import psutil

TRIES = 3
SHARE = 0.05
"""Share of the processors' time that may be stolen; beyond it a figure means little."""

_Found = TypeVar("_Found")


def stolen() -> float:
    """Return the processor seconds that the hypervisor withheld from this machine; 0 if the kernel has no count."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def undisturbed(
    tries: Iterable[Callable[[], _Found]],
    stolen: Callable[[], float] = stolen,
    settled: Callable[[_Found], bool] = lambda _: False,
) -> tuple[_Found, float]:
    """Return the first result measured on an undisturbed machine, or else the least disturbed result, and its share.

    The share is the stolen part of the processors' time during that measurement. Discarded tries are reported on
    standard error. settled: whether a result has to be kept, regardless of stolen time.
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
