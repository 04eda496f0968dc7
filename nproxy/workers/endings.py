"""Helpers for the ends of processes: waiting with a limit, and describing a return code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


async def within(seconds: float, done: Coroutine[Any, Any, object]) -> bool:
    """Whether `done` completes within so many seconds; otherwise it is cancelled."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await done
            return True
    return False


def how_it_ended(code: int | None) -> str:
    """Describe a return code, to follow the name of a process: `was killed by SIGKILL`, `ended with 1`."""
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with {code}"
