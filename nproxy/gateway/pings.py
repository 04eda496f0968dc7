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

    seconds: None for no pings. Nobody else may write to the stream meanwhile. If the block is left with an exception,
    the stream may still end with an event.
    """
    if exchange.response is None:
        yield
        return
    pings = None if seconds is None else asyncio.create_task(_ping(exchange, seconds / 2))
    exchange.only_pinged = True
    try:
        yield
    finally:
        if pings is not None:
            pings.cancel()
    exchange.only_pinged = False


async def _ping(exchange: Exchange, seconds: float) -> None:
    """Send one ping at once, as the last write may be as long ago as is allowed, and then one after each period."""
    while True:
        exchange.write_now(PING)  # or not, if the client has not read what came before
        await asyncio.sleep(seconds)
