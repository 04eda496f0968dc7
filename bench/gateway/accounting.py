"""CPU time and memory of a process and its descendants, as accounted by the kernel."""

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
    """Return the id of the clock that counts a process's CPU time, of all its threads, including those that have ended.

    Computed as clock_getcpuclockid(3) does: the complement of the process id, and 2 for the scheduler's nanoseconds.
    """
    return (~pid << 3) | 2


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time of all processes so far; those that have ended count 0."""
    spent = 0
    for pid in pids:
        with suppress(OSError):
            spent += time.clock_gettime_ns(cpu_clock(pid))
    return spent / 1e9


def peak_mib(pids: Iterable[int]) -> float:
    """Return the sum of each process's peak resident size, in MiB; shared pages count for each process."""
    kilobytes = 0
    for pid in pids:
        with suppress(OSError):
            kilobytes += peak_of((_PROC / str(pid) / "status").read_text())
    return kilobytes / 1024


def peak_of(status: str) -> int:
    """Return the peak in a /proc/PID/status, in kB; 0 for a process that has no memory any more."""
    found = _PEAK.search(status)
    return int(found[1]) if found else 0


def family(pid: int) -> list[int]:
    """Return the ids of this process and all its descendants."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def cores() -> tuple[int, int]:
    """Return the core of the gateways and that of the load; the same one twice if there is only one."""
    allowed: Sequence[int] = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Pin this thread, and what it starts in the block, to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
