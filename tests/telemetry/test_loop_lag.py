"""The lag probe tells when the loop was blocked."""

from __future__ import annotations

import asyncio
import time

from nproxy.telemetry.loop_lag import LagProbe


async def test_a_blocked_loop_is_told() -> None:
    told: asyncio.Queue[float] = asyncio.Queue()
    with LagProbe(told.put_nowait, 0.01):
        time.sleep(0.1)
        assert 0.08 < await told.get() < 1.0
        await told.get()  # and goes on
    await asyncio.sleep(0.05)
    assert told.qsize() <= 1, "and ends with its block"
