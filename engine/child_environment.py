"""The environment of the engine's child processes: the core, and the one that tries grammars."""

from __future__ import annotations

import os
import site
from pathlib import Path

_SPINS = 10_000  # rounds of spinning of a math thread that waits for another


def child_environment() -> dict[str, str]:
    """Return the environment for the engine's child processes: this process's, with PYTHONPATH, GOMP_SPINCOUNT and
    THP_MEM_ALLOC_ENABLE set if needed.

    The child runs the same `engine` as this process, wherever that was imported from: an installed one is found anyway;
    a source tree is named, because `-P` leaves the working folder out. Unless the operator sets it otherwise, its math
    threads spin only briefly while they wait for each other, and large tensors use large pages.

    On torch's backend a step is some 2,000 small operations, and the threads synchronize after each. How long a round
    of spinning takes depends on the CPU (docs/performance.md has the figures of two). Too few rounds do not cover the
    time between two synchronizations, and each then costs a wake-up by the kernel; with too many, a second engine on
    the same cores waits for threads that do nothing.
    """
    environment = dict(os.environ)
    root = str(Path(__file__).resolve().parent.parent)
    if root not in site.getsitepackages():
        environment["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [environment.get("PYTHONPATH")])])
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(_SPINS))
    environment.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    return environment
