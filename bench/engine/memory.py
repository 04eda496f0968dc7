"""The most memory that a peer has held."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil


def peak_mib(pid: int) -> int:
    """The peaks of a process and all below it, added up, in MiB: what they share counts for each."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    total = 0
    for one in family:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            total += peak_kib(Path(f"/proc/{one.pid}/status").read_text().splitlines())
    return total >> 10


def peak_kib(status: Iterable[str]) -> int:
    """The peak in the lines of /proc/PID/status; 0 for what has no memory of its own."""
    return next((int(line.split()[1]) for line in status if line.startswith("VmHWM:")), 0)
