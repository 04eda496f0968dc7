"""A deadline that moves: it passes once, when it was set last, and never once it was stopped."""

from __future__ import annotations

import asyncio
from math import inf

from nproxy.upstreams.watchdog import Watchdog


async def barks(*moves: tuple[float, float], seconds: float = 0.2) -> list[float]:
    """When it barks, in seconds from the start, if it is moved `after` seconds to `at` seconds from then."""
    loop = asyncio.get_running_loop()
    began, heard = loop.time(), list[float]()
    watchdog = Watchdog(lambda: heard.append(loop.time() - began), loop)
    for after, at in moves:
        loop.call_at(began + after, watchdog.watch, began + after + at)
    await asyncio.sleep(seconds)
    assert watchdog.expired == bool(heard)
    watchdog.stop()
    return heard


async def test_it_barks_once_when_its_time_has_come() -> None:
    (at,) = await barks((0.0, 0.05))
    assert 0.04 < at < 0.15


async def test_it_goes_by_what_was_set_last() -> None:
    assert not await barks((0.0, 0.05), (0.02, inf))
    (later,) = await barks((0.0, 0.05), (0.02, 0.1))
    assert later > 0.11
    (sooner,) = await barks((0.0, 10.0), (0.02, 0.02))
    assert sooner < 0.15


async def test_once_stopped_it_is_silent() -> None:
    loop = asyncio.get_running_loop()
    heard: list[float] = []
    watchdog = Watchdog(lambda: heard.append(loop.time()), loop)
    watchdog.watch(loop.time() + 0.02)
    watchdog.stop()
    watchdog.watch(loop.time() + 0.02)
    await asyncio.sleep(0.06)
    assert not heard and not watchdog.expired
