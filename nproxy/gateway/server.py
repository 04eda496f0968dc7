"""The HTTP server: aiohttp's, with the time limits and the JSON error answers that aiohttp lacks.

It uses a few private attributes of aiohttp's RequestHandler. `PRIVATE` names them, and a test checks that they exist.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any

from aiohttp import HttpVersion11, hdrs
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler, RequestPayloadError, _ErrInfo
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse
from aiohttp.web_server import Server

from nproxy.gateway.connection_log import ConnectionLog
from nproxy.gateway.exchange import SERVER
from nproxy.gateway.request_id import request_id
from nproxy.openai.errors import ApiError, internal_error, invalid_request

HEADER_SECONDS = 10.0
"""How long a request head may take to be complete, from its first byte on."""
KEEPALIVE_SECONDS = 75.0
"""How long a connection may wait for its next request; nginx's default. Proxies in front should wait less."""
LINGER_SECONDS = 5.0
"""How long a connection that is closing may take to send what was written."""

MOST_HEADERS = 128
"""The most header lines of a request. The parser enforces this limit and the next one, heads.py the third."""
LONGEST_HEADER = 8190
"""The most bytes of the request line, of a header's name, and of its value."""
MOST_HEAD_BYTES = 64 << 10
"""The most bytes of all header lines together."""

_TOO_MANY = "Too many headers"  # the parser's message: it has no exception type for this case

PRIVATE = (
    "_request_count",
    "_waiter",
    "_messages",
    "_current_request",
    "_lingering_time",
    "_reading_paused",
    "_buffer_paused",
)
"""Attributes of aiohttp's RequestHandler that Connection uses. In this order: the number of requests parsed so far; the
future that waits for the next request; the parsed requests that wait, with their bodies; the request that is being
answered; how long the rest of an unwanted body is read; whether reading is paused because a body is not consumed, and
whether because too much other data waits."""

_MOST_APART = 64
_HEAD_END = b"\r\n\r\n"

log = logging.getLogger("nproxy.gateway")

Handler = Callable[[BaseRequest], Awaitable[StreamResponse]]


class Connection(RequestHandler):
    """One client connection.

    A request head must be complete within `header_seconds` of its first byte; the first head, of the accept.
    """

    def __init__(
        self, manager: Server, connection_log: ConnectionLog, *, header_seconds: float, **settings: Any
    ) -> None:
        super().__init__(manager, **settings)
        self._connection_log = connection_log
        self._header_seconds = header_seconds
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes from the socket, and watch how long heads take."""
        heads = self._request_count
        for part in _heads_apart(data):
            super().data_received(part)
        if self._messages and isinstance(wrong := self._messages[-1][0], _ErrInfo):
            self._break_bodies()
            why = _parser_error(wrong.status, wrong.exc).message
            id = self._error_id if self._current_request is None else None  # else that request's
            self._connection_log.no_request(self.transport, data, why, id)
        if self._request_count != heads:
            self._cancel_timer()
        elif self._header_timer is None and self._waiter is not None and not self._waiter.done():
            self._await_head()  # the first bytes of the next request on this connection

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Resume reading if it was paused. aiohttp calls this after every consumed piece of a body."""
        if self._reading_paused or self._buffer_paused:
            super().resume_reading(resume_parser)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the wait."""
        self._cancel_timer()
        super().connection_lost(exc)

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> StreamResponse:
        """Return the answer to malformed HTTP, or to an internal error: the error envelope, then close.

        It echoes nothing of the request.
        """
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was begun and cannot be replaced")
        if status >= 500:
            log.error("a request failed", exc_info=exc, extra={"fields": {"request_id": self._error_id}})
        answer_as_http11(request)  # aiohttp answers requests that it cannot parse with HTTP/1.0
        error = _parser_error(status, exc)
        response = Response(status=error.status, body=error.envelope(), content_type="application/json")
        response.headers.update({hdrs.SERVER: SERVER, "x-request-id": self._error_id})
        response.force_close()
        return response

    @cached_property
    def _error_id(self) -> str:
        """The request id of the error that ends the connection."""
        return request_id(None)

    def _break_bodies(self) -> None:
        """Fail all bodies that are incomplete: after malformed HTTP no more of them will come.

        aiohttp's parser does not tell their readers.
        """
        self._lingering_time = 0.0
        unfinished = [payload for _, payload in self._messages]
        if self._current_request is not None:
            unfinished.append(self._current_request.content)
        for payload in unfinished:
            if not payload.is_eof():
                payload.set_exception(RequestPayloadError("malformed"))

    def _await_head(self) -> None:
        self._header_timer = asyncio.get_running_loop().call_later(self._header_seconds, self.force_close)

    def _cancel_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class HttpServer(Server):
    """Creates a Connection for each accepted socket. A handler's task is cancelled when its client disconnects.

    A transport that is being closed waits until its written data is sent, and a client that reads nothing delays that
    forever: such connections are aborted after `linger_seconds`, and at once at the shutdown. Client connections may
    use half of the process's file descriptors; the rest is for calls to upstreams. A connection beyond that is aborted
    as soon as it is accepted, and `turned_away` is called. With TLS, a connection is counted by `accepted` before its
    handshake, because a handshake holds a file descriptor, too.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        header_seconds: float = HEADER_SECONDS,
        linger_seconds: float = LINGER_SECONDS,
        turned_away: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._turned_away = turned_away
        self._header_seconds = header_seconds
        self._linger_seconds = linger_seconds
        self._running_loop = asyncio.get_running_loop()
        self._transports: dict[RequestHandler, asyncio.Transport] = {}
        self._closing: set[asyncio.Transport] = set()
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self.connection_log = ConnectionLog(log)
        self._vacant = asyncio.Event()
        self._vacant.set()
        self._sweep_timer = self._running_loop.call_later(linger_seconds, self._sweep)

    def __call__(self) -> RequestHandler:
        """Return the handler of a new connection."""
        return Connection(
            self,
            self.connection_log,
            header_seconds=self._header_seconds,
            loop=self._running_loop,
            keepalive_timeout=KEEPALIVE_SECONDS,
            access_log=None,
            logger=log,
            auto_decompress=False,  # passed-through bodies keep their encoding; others are decoded within limits
            max_line_size=LONGEST_HEADER,
            max_field_size=LONGEST_HEADER,
            max_headers=MOST_HEADERS,
        )

    def accepted(self, handler: RequestHandler, transport: asyncio.Transport) -> bool:
        """Count a connection until `connection_lost`. Returns False, with the connection aborted, if it is too many."""
        self._transports[handler] = transport
        self._vacant.clear()
        if len(self._transports) <= self._most:
            return True
        transport.abort()
        self.connection_log.too_many(self._most)
        self._turned_away()
        return False

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Count a connection."""
        super().connection_made(handler, transport)
        if handler in self._transports:
            self._transports[handler] = transport  # the TLS transport over the one that was counted
        else:
            self.accepted(handler, transport)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Count it no more."""
        super().connection_lost(handler, exc)
        self._transports.pop(handler, None)
        if not self._transports:
            self._vacant.set()

    async def vacant(self) -> None:
        """Wait until there are no connections."""
        await self._vacant.wait()

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - aiohttp's signature
        """Give handlers so many seconds to end, cancel the others, then abort the connections that are still open."""
        await super().shutdown(timeout)
        self._sweep_timer.cancel()
        for transport in tuple(self._transports.values()):
            transport.abort()

    def _sweep(self) -> None:
        """Abort the connections that were closing at the previous sweep already."""
        for transport in self._closing:
            transport.abort()
        self._closing = {transport for transport in self._transports.values() if transport.is_closing()}
        self._sweep_timer = self._running_loop.call_later(self._linger_seconds, self._sweep)


def answer_as_http11(request: BaseRequest) -> None:
    """Have the answer use HTTP/1.1, whatever version the request had."""
    request._cache["version"] = HttpVersion11


def _heads_apart(data: bytes) -> list[bytes]:
    """Split data after each request head, so that pipelined requests before a malformed one are answered.

    Given all at once, the parser would drop them together with the malformed one. Data with more than _MOST_APART heads
    is not split, because each part costs a call of the parser.
    """
    if data.find(_HEAD_END, 0, data.rfind(b"\r")) < 0:
        return [data]  # as nearly always: no head ends before the last line does, so there is one at most
    if not 1 < data.count(_HEAD_END) <= _MOST_APART:
        return [data]
    *parts, rest = data.split(_HEAD_END)
    return [*(part + _HEAD_END for part in parts), *([rest] if rest else [])]


def _parser_error(status: int, exc: BaseException | None) -> ApiError:
    if status >= 500:
        return internal_error()
    if isinstance(exc, LineTooLong):
        return invalid_request("The request line or a header is too long.", status=431)
    if _TOO_MANY in str(exc):
        return invalid_request(f"The request has more than {MOST_HEADERS} headers.", status=431)
    return invalid_request("The request is not valid HTTP.")
