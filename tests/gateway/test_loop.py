"""A process that serves is not stopped by walks over what was loaded before."""

from __future__ import annotations

import gc

from nproxy.gateway import loop


def test_what_was_loaded_is_left_out_of_collections() -> None:
    gc.unfreeze()  # what the tests' own collection froze
    before, threshold = len(gc.get_objects()), gc.get_threshold()
    try:
        walked, young = loop.run(_seen())
        assert walked < before / 4
        assert young > 4 * threshold[0], "and they are few, also beside the 2000 of Python 3.14"
    finally:
        gc.set_threshold(*threshold)


async def _seen() -> tuple[int, int]:
    """How many objects a full collection walks now, and after how many more the youngest are walked."""
    return len(gc.get_objects()), gc.get_threshold()[0]
