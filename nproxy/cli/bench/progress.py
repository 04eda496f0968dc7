"""A progress bar on a terminal; nothing in a pipe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from nproxy.cli.bench.measuring import Measuring
from nproxy.cli.bench.schedule import Extent
from nproxy.concurrency.tasks import beside

EVERY_SECONDS = 0.25
"""Seconds between two drawings. They run in the loop that measures, so they must be rare enough not to matter."""


@asynccontextmanager
async def shown(
    measuring: Measuring, extent: Extent, screen: Console, clock: Callable[[], float]
) -> AsyncIterator[None]:
    """Draw a bar while the block runs, if there is a terminal."""
    if not screen.is_terminal:
        yield
        return
    columns = TextColumn("{task.description}", markup=False), BarColumn(bar_width=24)
    with Progress(*columns, console=screen, auto_refresh=False, transient=True) as progress:
        bar = progress.add_task("", total=1.0)

        async def draw() -> None:
            while True:
                words, share = how_far(measuring, extent, clock())
                progress.update(bar, description=words, completed=share)
                progress.refresh()
                await asyncio.sleep(EVERY_SECONDS)

        async with beside(draw()):
            yield


def how_far(measuring: Measuring, extent: Extent, now: float) -> tuple[str, float]:
    """Return a line, and the share that is done: of the requests or of the time, whichever ends first."""
    if measuring.started is None:
        return "warming up", 0.0
    tally, elapsed = measuring.tally, now - measuring.started
    ended = tally.ok + tally.failed
    shares = (
        ended / extent.requests if extent.requests else 0.0,
        elapsed / extent.seconds if extent.seconds else 0.0,
    )
    rate = tally.completion_tokens / elapsed if elapsed > 0 else 0.0
    failed = f", {tally.failed} failed" if tally.failed else ""
    words = f"{elapsed:.0f} s: {ended} ended{failed}, {measuring.begun - ended} in flight, {rate:,.0f} tokens/s"
    return words, min(1.0, max(shares))
