"""What the commands share: parsing of arguments, and the environment for those that compute in their own process."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from engine.child_environment import child_environment


def numbers(text: str) -> tuple[int, ...]:
    """Parse positive numbers separated by commas; raises ArgumentTypeError for anything else."""
    try:
        read = tuple(int(word) for word in text.split(","))
    except ValueError:
        read = ()
    if not read or min(read) < 1:
        raise argparse.ArgumentTypeError(f"must be numbers above 0 with commas between them, not {text}")
    return read


def as_the_engine_runs(module: str, words: Sequence[str]) -> None:
    """Execute this module anew with these arguments and the environment of the engine's own processes, if it differs.

    The libraries read these variables when torch is loaded, so the running process cannot change them any more.
    """
    wanted = child_environment()
    read_when_loaded = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "THP_MEM_ALLOC_ENABLE")
    if any(os.environ.get(name) != wanted.get(name) for name in read_when_loaded):
        os.execve(sys.executable, [sys.executable, "-m", module, *words], wanted)
