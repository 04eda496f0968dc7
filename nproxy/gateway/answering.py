"""From what serves a request, or fails at it, to an answer: here, and nowhere else, exceptions become responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from nproxy.gateway.exchange import CLIENT_LEFT, ClientLeft, Exchange
from nproxy.openai.errors import ApiError, internal_error

log = logging.getLogger("nproxy.gateway")


async def answer(exchange: Exchange, serving: Awaitable[None], write_seconds: float) -> StreamResponse:
    """Wait for what serves a request, and see that it is answered; gives the answer.

    serving: it writes the answer itself, or raises. write_seconds: how long the client may take nothing of it.
    """
    with WriteGuard(exchange.request, write_seconds):
        try:
            await _served(exchange, serving)
        except ClientLeft:
            exchange.code = CLIENT_LEFT
            exchange.abort()
        except asyncio.CancelledError:
            if not exchange.whole:
                exchange.code = CLIENT_LEFT
            raise
    if exchange.response is None:
        raise RuntimeError("a handler ended without an answer")
    return exchange.response


async def give_up(exchange: Exchange, error: ApiError, outcome: str) -> None:
    """Answer with an error; where a status was sent, all that can still be said is that this is not the whole answer.

    outcome: what the log says of that. Raises ClientLeft.
    """
    exchange.outcome = outcome
    if exchange.response is None:
        await exchange.respond_error(error)
    else:
        exchange.abort()


async def _served(exchange: Exchange, serving: Awaitable[None]) -> None:
    try:
        await serving
    except ApiError as error:
        await exchange.respond_error(error)
    except ClientLeft:
        raise
    except Exception:
        log.exception("a request failed", extra={"fields": {"request_id": exchange.id, "endpoint": exchange.endpoint}})
        await give_up(exchange, internal_error(), "internal")


class WriteGuard:
    """Ends a connection whose client takes nothing for `seconds` while something waits to be sent.

    Looks now and then instead of timing every write: what the socket has taken is what was written less what waits.
    """

    __slots__ = ("_handle", "_request", "_seconds", "_since", "_taken")

    def __init__(self, request: BaseRequest, seconds: float) -> None:
        self._request = request
        self._seconds = seconds
        self._taken = -1
        self._since = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._arm()

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(self._seconds / 4, self._look)

    def _look(self) -> None:
        transport = self._request.transport
        if transport is None:
            return
        waits = transport.get_write_buffer_size()
        taken = self._request.writer.output_size - waits
        now = asyncio.get_running_loop().time()
        if not waits or taken != self._taken:
            self._taken, self._since = taken, now
        elif now - self._since >= self._seconds:
            transport.abort()  # the handler is cancelled by it, and all legs with it
            return
        self._arm()
