"""The peak memory of a peer."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil


def peak_mib(pid: int) -> int:
    """Return the sum of the peak RSS of a process and its descendants, in MiB; shared memory counts for each."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    total = 0
    for one in family:
        with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended meanwhile
            total += peak_kib(Path(f"/proc/{one.pid}/status").read_text().splitlines())
    return total >> 10


def peak_kib(status: Iterable[str]) -> int:
    """Return the peak RSS from the lines of /proc/PID/status; 0 for a process without memory of its own."""
    return next((int(line.split()[1]) for line in status if line.startswith("VmHWM:")), 0)
