"""The event loop of a process that serves."""

from __future__ import annotations

import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

_T = TypeVar("_T")

_YOUNG = 10_000
"""As many objects more than before, and the youngest are looked at: what a hundred requests hold."""


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run `main` to its end on a loop of its own, and give what it gives.

    Everything loaded by now lives as long as the process does. The garbage collector is told to leave it out: a full
    collection, in which no stream moves, has only what came later to walk. It comes seldom: what is left of a request
    goes by itself (tests/gateway/test_garbage.py), and all it would find are those under way.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)
    return uvloop.run(main)
