"""What this process may use of its machine, and returning memory that it does not need."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

import torch

from engine.cgroups import cpus, memory_bytes


def ram() -> int:
    """Return the bytes of RAM that this process may use: the machine's, or what its control groups allow if
    that is less.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = memory_bytes()
    return machine if limit is None else min(machine, limit)


def swap() -> int:
    """Return the bytes of swap that the machine has; 0 if it does not say so."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):  # not Linux
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("SwapTotal:")), 0)


def give_back() -> None:
    """Return freed memory to the system, if the C library can: glibc keeps it, which after loading is a tenth of a
    small model's size.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def usable_cores() -> int:
    """Return how many threads torch should use: its own default, but no more than affinity and the control
    groups allow.
    """
    cores = torch.get_num_threads()
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        cores = min(cores, len(os.sched_getaffinity(0)))
    allowed = cpus()
    return cores if allowed is None else max(min(cores, round(allowed)), 1)
