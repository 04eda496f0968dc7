"""Pings between two upstreams: one conduct has ended, the next begins when its upstream has room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nproxy.concurrency.tasks import beside
from nproxy.gateway.exchange import Exchange
from nproxy.openai.wire import PING


@asynccontextmanager
async def pinged(exchange: Exchange, seconds: float | None) -> AsyncIterator[None]:
    """If a stream has begun, send its client pings while the block runs, so that it is never silent for `seconds`.

    seconds: None for no pings. Nobody else may write to the stream meanwhile. If the block is left with an exception,
    the stream may still end with an event.
    """
    if exchange.response is None:
        yield
        return
    exchange.only_pinged = True
    async with beside(*([] if seconds is None else [_ping(exchange, seconds / 2)])):
        yield
    exchange.only_pinged = False


async def _ping(exchange: Exchange, seconds: float) -> None:
    """Send one ping at once, as the last write may be as long ago as is allowed, and then one after each period."""
    while True:
        exchange.write_now(PING)  # or not, if the client has not read what came before
        await asyncio.sleep(seconds)
