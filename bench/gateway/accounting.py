"""What a family of processes has used, by the kernel's own accounts."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_PROC = Path("/proc")
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def cpu_clock(pid: int) -> int:
    """The id of the clock that counts the CPU time of a process, all its threads together, those that ended included.

    As clock_getcpuclockid(3) makes it: the complement of the process's number, and 2 for the scheduler's nanoseconds.
    """
    return (~pid << 3) | 2


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of all of them so far; those that are gone count nothing."""
    spent = 0
    for pid in pids:
        with suppress(OSError):
            spent += time.clock_gettime_ns(cpu_clock(pid))
    return spent / 1e9


def peak_mib(pids: Iterable[int]) -> float:
    """The sum of the largest resident sizes that each has ever had, in MiB; pages in common count for each."""
    kilobytes = 0
    for pid in pids:
        with suppress(OSError):
            kilobytes += peak_of((_PROC / str(pid) / "status").read_text())
    return kilobytes / 1024


def peak_of(status: str) -> int:
    """The peak that a /proc/PID/status tells, in kB; 0 for a process that has no memory any more."""
    found = _PEAK.search(status)
    return int(found[1]) if found else 0


def family(pid: int) -> list[int]:
    """This process and all below it."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def cores() -> tuple[int, int]:
    """The core of the gateways and that of the load; the same one twice where there is but one."""
    allowed: Sequence[int] = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """What this thread starts in here runs on that core alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
