"""What the commands have in common: their words, and the environment of those that compute in this process."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from engine.channel import child_environment


def numbers(text: str) -> tuple[int, ...]:
    """Numbers above 0 with commas between them; raises ArgumentTypeError for others."""
    try:
        read = tuple(int(word) for word in text.split(","))
    except ValueError:
        read = ()
    if not read or min(read) < 1:
        raise argparse.ArgumentTypeError(f"must be numbers above 0 with commas between them, not {text}")
    return read


def as_the_engine_runs(module: str, words: Sequence[str]) -> None:
    """Run this module anew, with these words and the variables of the engine's own processes, unless they are there.

    They are read when torch is loaded, so this process cannot change them any more.
    """
    wanted = child_environment()
    read_when_loaded = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "THP_MEM_ALLOC_ENABLE")
    if any(os.environ.get(name) != wanted.get(name) for name in read_when_loaded):
        os.execve(sys.executable, [sys.executable, "-m", module, *words], wanted)
