"""From what serves a request, or fails at it, to an answer: here, and nowhere else, exceptions become responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from aiohttp.web_response import StreamResponse

from nproxy.gateway.exchange import CLIENT_LEFT, ClientLeft, Exchange
from nproxy.openai.errors import ApiError, internal_error

log = logging.getLogger("nproxy.gateway")

SLOW_READER = "slow_reader"
"""The outcome where a client took nothing for too long."""
_NEVER_LOOKED = (-1, 0.0)


async def answer(exchange: Exchange, serving: Awaitable[None], guard: WriteGuard) -> StreamResponse:
    """Wait for what serves a request, and see that it is answered; gives the answer.

    serving: it writes the answer itself, or raises. guard: sees that the client takes it.
    """
    guard.watch(exchange)
    try:
        try:
            await serving
        except Exception as error:  # here and not in a coroutine around it, which every event would resume
            await _respond_with_error(exchange, error)
    except ClientLeft:
        _has_not_all(exchange)
        exchange.abort()
    except asyncio.CancelledError:
        if not exchange.whole:
            _has_not_all(exchange)
        raise
    finally:
        guard.forget(exchange)
    if exchange.response is None:
        raise RuntimeError("a handler ended without an answer")
    return exchange.response


def _has_not_all(exchange: Exchange) -> None:
    """The client has not got the whole answer: it left, or was cut off."""
    exchange.code = CLIENT_LEFT
    exchange.outcome = exchange.cut or exchange.outcome


async def give_up(exchange: Exchange, error: ApiError, outcome: str) -> None:
    """Answer with an error; where a status was sent, all that can still be said is that this is not the whole answer.

    outcome: what the log says of that. Raises ClientLeft.
    """
    exchange.outcome = outcome
    if exchange.response is None:
        await exchange.respond_error(error)
    else:
        exchange.abort()


async def _respond_with_error(exchange: Exchange, error: Exception) -> None:
    """Answer with what serving came to. Raises ClientLeft, also where it was that."""
    if isinstance(error, ApiError):
        await exchange.respond_error(error)
        return
    if isinstance(error, ClientLeft):
        raise error
    fields = {"request_id": exchange.id, "endpoint": exchange.endpoint}
    log.error("a request failed", exc_info=error, extra={"fields": fields})
    await give_up(exchange, internal_error(), "internal")


class WriteGuard:
    """Ends connections whose clients take nothing for `seconds` while something waits to be sent.

    Looks at all of them now and then instead of timing every write: what a socket has taken is what was written less
    what waits. While nobody is answered nothing looks.
    """

    __slots__ = ("_looking", "_seconds", "_watched")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._watched: dict[Exchange, tuple[int, float]] = {}  # bytes taken at the first look that found so many; when
        self._looking = False

    def watch(self, exchange: Exchange) -> None:
        """See that what is written of its answer is taken, until `forget`."""
        self._watched[exchange] = _NEVER_LOOKED
        if not self._looking:
            self._look_later()

    def forget(self, exchange: Exchange) -> None:
        """Its answer is over."""
        self._watched.pop(exchange, None)

    def _look_later(self) -> None:
        self._looking = True
        asyncio.get_running_loop().call_later(self._seconds / 4, self._look)

    def _look(self) -> None:
        self._looking = False
        now = asyncio.get_running_loop().time()
        for exchange, (before, since) in tuple(self._watched.items()):
            transport = exchange.request.transport
            if transport is None:
                self.forget(exchange)
                continue
            waits = transport.get_write_buffer_size()
            taken = exchange.request.writer.output_size - waits
            if not waits or taken != before:
                self._watched[exchange] = taken, now
            elif now - since >= self._seconds:
                exchange.cut = SLOW_READER
                transport.abort()  # the handler is cancelled by it, and all legs with it
                self.forget(exchange)
        if self._watched:
            self._look_later()
