"""Pings between two upstreams: one conduct has ended, the next begins when its upstream has room."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from nproxy.gateway.exchange import Exchange
from nproxy.openai.wire import PING


@contextmanager
def pinged(exchange: Exchange, seconds: float | None) -> Iterator[None]:
    """If a stream has begun, send its client pings while the block runs, so that it is never silent for `seconds`.

    Nobody else may write to the stream meanwhile. If the block is left with an exception, the stream may still end with
    an event.
    """
    if exchange.response is None or seconds is None:
        yield
        return
    pings = asyncio.create_task(_ping(exchange, seconds / 2))
    exchange.only_pinged = True
    try:
        yield
    finally:
        pings.cancel()
    exchange.only_pinged = False


async def _ping(exchange: Exchange, seconds: float) -> None:
    """Send one ping at once, as the last write may be as long ago as is allowed, and then one after each period."""
    while True:
        exchange.write_now(PING)  # or not, if the client has not read what came before
        await asyncio.sleep(seconds)
