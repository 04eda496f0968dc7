"""A process that serves is not stopped by walks over what was loaded before."""

from __future__ import annotations

import gc

from nproxy.gateway import loop


def test_what_was_loaded_is_left_out_of_collections() -> None:
    before = len(gc.get_objects())
    try:
        assert loop.run(_walked()) < before / 4
    finally:
        gc.unfreeze()


async def _walked() -> int:
    """How many objects a full collection walks now."""
    return len(gc.get_objects())
