"""The event loop of a serving process."""

from __future__ import annotations

import gc
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

_T = TypeVar("_T")

_YOUNG = 10_000
"""The garbage collector examines its youngest generation after so many new objects: those of a hundred requests."""

_TURN_SECONDS = 0.0005
"""How long another thread may keep the interpreter while the event loop waits for it; Python's default is 5 ms. Threads
make spans and metrics into bytes, and read long bodies, for tens of milliseconds, and the loop asks for the interpreter
each time it has waited for its sockets."""


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run `main` to its end on a new event loop, and return its result.

    All objects loaded so far live as long as the process, so they are excluded from garbage collection. A full
    collection, which stops all streams, then only has to traverse newer objects. Collections are rare, because the
    objects of a request are freed without them (tests/gateway/test_garbage.py), and a collection would only traverse
    those of requests in flight.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)
    sys.setswitchinterval(_TURN_SECONDS)
    return uvloop.run(main)
