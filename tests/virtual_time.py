"""An event loop with virtual time: instead of waiting for a timer, it moves its clock to the timer's time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while any callback is ready; then it jumps to the next timer. For code that waits for no IO."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        timers: list[asyncio.TimerHandle] = [one for one in self._scheduled if not one.cancelled()]  # type: ignore[attr-defined]
        if not self._ready and timers:  # type: ignore[attr-defined]
            self._now = max(self._now, min(timer.when() for timer in timers))
        super()._run_once()  # type: ignore[misc]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, without waiting for timers."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
