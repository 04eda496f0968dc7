"""The event loop of a process that serves."""

from __future__ import annotations

import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run `main` to its end on a loop of its own, and give what it gives.

    Everything loaded by now lives as long as the process does. The garbage collector is told to leave it out: a full
    collection, in which no stream moves, has only what came later to walk.
    """
    gc.collect()
    gc.freeze()
    return uvloop.run(main)
