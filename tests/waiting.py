"""Waiting for what somebody else does, in the same loop or in another process, and never for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def until(
    condition: Callable[[], object] | Callable[[], Awaitable[object]], seconds: float = 10.0, pause: float = 0.01
) -> None:
    """Wait until something comes true; it is asked again and again. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while True:
            held = condition()
            if await held if isinstance(held, Awaitable) else held:
                return
            await asyncio.sleep(pause)
