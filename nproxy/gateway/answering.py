"""Runs the handler of a request and sees that it is answered. The only place where exceptions become responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp.web_response import StreamResponse

from nproxy.gateway.exchange import Exchange
from nproxy.gateway.response_writer import ClientLeft
from nproxy.openai.errors import ApiError, internal_error
from nproxy.openai.wire import error_event

log = logging.getLogger("nproxy.gateway")

SLOW_READER = "slow_reader"
"""The outcome if a client read nothing for too long."""
_NEVER_LOOKED = (-1, 0.0)


async def give_up(exchange: Exchange, error: ApiError, outcome: str) -> None:
    """Answer with an error. If an answer has begun already, abort the connection, so that it does not look complete;
    but a stream of pings ends with the error as an event.

    outcome: for the log. Raises ClientLeft.
    """
    exchange.record.outcome = outcome
    if exchange.response is None:
        await exchange.respond_error(error)
    elif exchange.only_pinged:
        exchange.record.end_status = error.status
        await exchange.finish(error_event(error))
    else:
        exchange.abort()


async def respond_with_error(exchange: Exchange, error: BaseException) -> bool:
    """Answer with the error that a handler raised; False if nobody is there to be answered. Raises ClientLeft."""
    if isinstance(error, ApiError):
        await exchange.respond_error(error)
        return True
    if isinstance(error, ClientLeft | asyncio.CancelledError):
        return False
    fields = {"request_id": exchange.id, "endpoint": exchange.record.endpoint}
    log.error("a request failed", exc_info=error, extra={"fields": fields})
    await give_up(exchange, internal_error(), "internal")
    return True


async def answer(
    exchange: Exchange,
    serve: Callable[[Exchange], Awaitable[None]],
    guard: WriteGuard,
    failed: Callable[[Exchange, BaseException], Awaitable[bool]] = respond_with_error,
    ended: Callable[[Exchange], None] = lambda _: None,
) -> StreamResponse:
    """Call the handler of a request, turn its exceptions into responses, and return the response.

    serve: the handler; it writes the answer itself, or raises. guard: cuts off a client that does not read it. failed:
    answers for a handler that raised something or was cancelled, or returns False. ended: called when the answer is
    over, however it ended.
    """
    guard.watch(exchange)
    try:
        try:
            await serve(exchange)
        except (asyncio.CancelledError, Exception) as error:
            if not await failed(exchange, error):  # not in a coroutine around `serve`: resumes would pass through it
                raise
    except ClientLeft:
        exchange.record.lost()
        exchange.abort()
    except asyncio.CancelledError:
        if not exchange.whole:
            exchange.record.lost()
        raise
    finally:
        guard.forget(exchange)
        ended(exchange)
    if exchange.response is None:
        raise RuntimeError("a handler ended without an answer")
    return exchange.response


class WriteGuard:
    """Aborts connections whose clients read nothing for `seconds` while data waits to be sent.

    It checks all connections periodically instead of timing every write: the bytes that a socket has taken are those
    written minus those in the write buffer. While no request is being answered, nothing is checked.
    """

    __slots__ = ("_looking", "_seconds", "_watched")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._watched: dict[Exchange, tuple[int, float]] = {}  # bytes taken, and when a check first found so many
        self._looking = False

    def watch(self, exchange: Exchange) -> None:
        """Watch until `forget` that the client reads what is written of its answer."""
        self._watched[exchange] = _NEVER_LOOKED
        if not self._looking:
            self._look_later()

    def forget(self, exchange: Exchange) -> None:
        """Stop watching: the answer is over."""
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
                exchange.record.cut = SLOW_READER
                transport.abort()  # aiohttp then cancels the handler, and with it all legs
                self.forget(exchange)
        if self._watched:
            self._look_later()
