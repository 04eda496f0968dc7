"""The HTTP server underneath: aiohttp's, with the time limits and the plain error pages that it lacks.

It touches a few private attributes of aiohttp's RequestHandler; `PRIVATE` names them, and a test holds aiohttp to them.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import HttpVersion11, hdrs
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler, RequestPayloadError, _ErrInfo
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse
from aiohttp.web_server import Server

from nproxy.gateway.exchange import SERVER
from nproxy.gateway.unread import Unread
from nproxy.openai.errors import ApiError, internal_error, invalid_request

HEADER_SECONDS = 10.0
KEEPALIVE_SECONDS = 75.0
LINGER_SECONDS = 5.0
MOST_HEADERS = 128
_TOO_MANY = "Too many headers"  # what the parser says of them: it has no exception of its own for it
LONGEST_HEADER = 8190

PRIVATE = (
    "_request_count",
    "_waiter",
    "_messages",
    "_current_request",
    "_lingering_time",
    "_reading_paused",
    "_buffer_paused",
)
"""Attributes of aiohttp's RequestHandler that Connection uses: requests parsed so far; the wait for the next one; those
that wait, with their bodies; the one that is answered; how long the rest of a body is read that nobody wants; whether
reading is held up, for a body that is not taken or for too much of the rest."""

_MOST_APART = 64
_HEAD_END = b"\r\n\r\n"

log = logging.getLogger("nproxy.gateway")

Handler = Callable[[BaseRequest], Awaitable[StreamResponse]]


class Connection(RequestHandler):
    """One client connection. A request head has `header_seconds` from its first byte, the first one from the accept."""

    def __init__(self, manager: Server, unread: Unread, *, header_seconds: float, **settings: Any) -> None:
        super().__init__(manager, **settings)
        self._unread = unread
        self._header_seconds = header_seconds
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        heads = self._request_count
        for part in _heads_apart(data):
            super().data_received(part)
        if self._messages and isinstance(wrong := self._messages[-1][0], _ErrInfo):
            self._break_bodies()
            self._unread.no_request(self.transport, data, _parser_error(wrong.status, wrong.exc).message)
        if self._request_count != heads:
            self._cancel_timer()
        elif self._header_timer is None and self._waiter is not None and not self._waiter.done():
            self._await_head()  # the first bytes of another request on this connection

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Read on, where reading was held up: aiohttp asks after every piece of a body that was taken."""
        if self._reading_paused or self._buffer_paused:
            super().resume_reading(resume_parser)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> StreamResponse:
        """The answer to what is not HTTP, or to a fault of our own: the envelope, without echo, then close."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was begun and cannot be replaced")
        if status >= 500:
            log.error("a request failed", exc_info=exc)
        answer_as_http11(request)  # aiohttp answers what it cannot read as HTTP/1.0
        error = _parser_error(status, exc)
        response = Response(status=error.status, body=error.envelope(), content_type="application/json")
        response.headers[hdrs.SERVER] = SERVER
        response.force_close()
        return response

    def _break_bodies(self) -> None:
        """What came is no HTTP: nothing of a body that is not here yet will come, though the parser tells nobody."""
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
    """Makes a Connection for each accepted socket. The handler's task is cancelled when its client leaves.

    A closed transport still waits until what was written is taken, and a client that reads nothing never takes it: such
    connections are broken off after `linger_seconds`, and at once at the shutdown. Clients may hold half of the files
    that the process may open, the rest is for calls to upstreams; a connection beyond is closed as soon as it comes.
    Who speaks TLS on it has it counted by `accepted` before: a handshake holds a file, too.
    """

    def __init__(
        self, handler: Handler, *, header_seconds: float = HEADER_SECONDS, linger_seconds: float = LINGER_SECONDS
    ) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._header_seconds = header_seconds
        self._linger_seconds = linger_seconds
        self._running_loop = asyncio.get_running_loop()
        self._transports: dict[RequestHandler, asyncio.Transport] = {}
        self._closing: set[asyncio.Transport] = set()
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self.unread = Unread(log)
        self._vacant = asyncio.Event()
        self._vacant.set()
        self._sweep_timer = self._running_loop.call_later(linger_seconds, self._sweep)

    def __call__(self) -> RequestHandler:
        return Connection(
            self,
            self.unread,
            header_seconds=self._header_seconds,
            loop=self._running_loop,
            keepalive_timeout=KEEPALIVE_SECONDS,
            access_log=None,
            logger=log,
            auto_decompress=False,  # bodies that pass through keep their encoding; the others are decoded within limits
            max_line_size=LONGEST_HEADER,
            max_field_size=LONGEST_HEADER,
            max_headers=MOST_HEADERS,
        )

    def accepted(self, handler: RequestHandler, transport: asyncio.Transport) -> bool:
        """Count a connection until `connection_lost`. False where it is one too many, and broken off."""
        self._transports[handler] = transport
        self._vacant.clear()
        if len(self._transports) <= self._most:
            return True
        transport.abort()
        self.unread.too_many(self._most)
        return False

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if handler in self._transports:
            self._transports[handler] = transport  # which speaks TLS over the one that was counted
        else:
            self.accepted(handler, transport)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._transports.pop(handler, None)
        if not self._transports:
            self._vacant.set()

    async def vacant(self) -> None:
        """Wait until there is no connection."""
        await self._vacant.wait()

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - aiohttp's signature
        """Give handlers so many seconds to end, cancel the rest, break off what then is still open."""
        await super().shutdown(timeout)
        self._sweep_timer.cancel()
        for transport in tuple(self._transports.values()):
            transport.abort()

    def _sweep(self) -> None:
        """Break off what was closing at the last sweep already."""
        for transport in self._closing:
            transport.abort()
        self._closing = {transport for transport in self._transports.values() if transport.is_closing()}
        self._sweep_timer = self._running_loop.call_later(self._linger_seconds, self._sweep)


def answer_as_http11(request: BaseRequest) -> None:
    """Have the answer say HTTP/1.1, whatever the request said."""
    request._cache["version"] = HttpVersion11


def _heads_apart(data: bytes) -> list[bytes]:
    """The same bytes, parted behind each head: of requests that come together, those before a bad one are answered.

    The parser forgets them with the bad one. Only so many: it would take each part for itself.
    """
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
    return invalid_request("The request is not HTTP that can be read.")
