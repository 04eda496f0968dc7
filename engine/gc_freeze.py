"""Keeps objects that live until a process ends away from the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_frozen(*, collect: bool = True) -> Iterator[None]:
    """Keep everything that is made in this block: no collection walks it, neither during the block nor later.

    Importing torch and reading a vocabulary would otherwise trigger hundreds of collections, which find next to
    nothing. collect: free what is garbage at the end of the block; else it is kept, too.
    """
    gc.disable()
    try:
        yield
        if collect:
            gc.collect()
        gc.freeze()
    finally:
        gc.enable()
