"""Waiting for something that happens in the same loop or in another process, with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def until(
    condition: Callable[[], object] | Callable[[], Awaitable[object]], seconds: float = 10.0, pause: float = 0.01
) -> None:
    """Wait until a condition holds. It is checked every `pause` seconds. Raises TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            held = condition()
            if await held if isinstance(held, Awaitable) else held:
                return
            await asyncio.sleep(pause)
