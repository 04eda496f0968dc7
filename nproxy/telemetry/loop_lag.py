"""How late the event loop runs its timers: the first sign of a loop that is blocked or has too much to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PROBE_SECONDS = 0.5


class LagProbe:
    """Context manager that calls `report` every `seconds` with how many seconds a timer was late."""

    def __init__(self, report: Callable[[float], None], seconds: float = PROBE_SECONDS) -> None:
        self._report = report
        self._seconds = seconds
        self._handle: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._arm()

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(self._seconds, self._fired)

    def _fired(self) -> None:
        if self._handle is not None:
            self._report(max(0.0, asyncio.get_running_loop().time() - self._handle.when()))
        self._arm()
