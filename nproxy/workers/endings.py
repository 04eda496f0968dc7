"""How processes end: in time or not, and in words."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


async def within(seconds: float, done: Coroutine[Any, Any, object]) -> bool:
    """Whether it comes to its end in time; it is cancelled otherwise."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await done
            return True
    return False


def how_it_ended(code: int | None) -> str:
    """What became of a process with this return code, for behind its name: `was killed by SIGKILL`, `ended with 1`."""
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with {code}"
