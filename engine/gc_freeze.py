"""What a process keeps to its end is none of the garbage collector's business."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_frozen() -> Iterator[None]:
    """All that is made in this block stays: no collection walks it, neither meanwhile nor later.

    Importing torch and reading a vocabulary set off hundreds otherwise, which find next to nothing.
    """
    gc.disable()
    try:
        yield
        gc.collect()
        gc.freeze()
    finally:
        gc.enable()
