"""Several requests at once: the engine computes them in the same steps, and steps are what takes the time here."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def at_once(*asks: Callable[[], Any]) -> list[Any]:
    """Ask all of it, each from a thread of its own; the answers in this order, or the first error."""
    with ThreadPoolExecutor(len(asks)) as pool:
        asked = [pool.submit(ask) for ask in asks]
        return [one.result() for one in asked]
