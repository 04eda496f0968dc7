"""A process that serves is not stopped by walks over what was loaded before, nor for long by threads beside."""

from __future__ import annotations

import gc
import sys

from nproxy.gateway import loop


def test_what_was_loaded_is_left_out_of_collections() -> None:
    gc.unfreeze()  # what the tests' own collection froze
    before, threshold, turn = len(gc.get_objects()), gc.get_threshold(), sys.getswitchinterval()
    try:
        walked, young, longest = loop.run(_seen())
        assert walked < before / 4
        assert young > 4 * threshold[0], "and they are few, also beside the 2000 of Python 3.14"
        assert longest < turn / 4
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(turn)


async def _seen() -> tuple[int, int, float]:
    """How many objects a full collection walks now, after how many more the youngest are walked, and how long a thread
    may run while another waits.
    """
    return len(gc.get_objects()), gc.get_threshold()[0], sys.getswitchinterval()
