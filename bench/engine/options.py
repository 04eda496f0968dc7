"""What the commands share: parsing of arguments, and the environment for those that compute in their own process."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

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


def chosen(
    given: str | None, all_of_them: Iterable[str], always: str | None = None, fail: Callable[[str], NoReturn] = sys.exit
) -> list[str]:
    """Return the given names, in the order of all of them, or all if none was given. `fail` is told of others."""
    every = [*all_of_them]
    if not given:
        return every
    wanted = {name.strip() for name in given.split(",")}
    if unknown := wanted.difference(every):
        fail(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    return [name for name in every if name in wanted or name == always]


def as_the_engine_runs(module: str, words: Sequence[str]) -> None:
    """Execute this module anew with these arguments and the environment of the engine's own processes, if it differs.

    The libraries read these variables when torch is loaded, so the running process cannot change them any more.
    """
    wanted = child_environment()
    read_when_loaded = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "THP_MEM_ALLOC_ENABLE")
    if any(os.environ.get(name) != wanted.get(name) for name in read_when_loaded):
        os.execve(sys.executable, [sys.executable, "-m", module, *words], wanted)
