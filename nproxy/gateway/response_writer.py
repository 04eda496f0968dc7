"""Writes an answer on a connection of aiohttp's server: the head, the framing, and the body.

aiohttp's server reads requests and manages connections. Its own response classes are made for applications, with hooks,
cookies and compression, and take twice as long (ADR 0043).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from aiohttp import HttpVersion, HttpVersion11, hdrs
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from nproxy.upstreams.http.head import joined, lines

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_WITHOUT_BODIES = frozenset({*range(100, 200), 204, 304})
"""Statuses whose answers have no body, whatever their headers say (RFC 9110, sections 15.2, 15.3.5 and 15.4.5)."""


class ClientLeft(Exception):
    """The client has disconnected, so nothing can be written to it. Never an upstream's fault."""


class ResponseWriter(StreamResponse):
    """One answer. Its head is sent with its first bytes, or by `flush_head`; `finish` writes the last bytes.

    To aiohttp it looks prepared from the beginning, and ended once it is finished.

    finished: the last bytes were sent.
    """

    def __init__(
        self, request: BaseRequest, status: int, headers: Iterable[tuple[str, str]], length: int | None, closes: bool
    ) -> None:
        """headers: without those for the body's framing, without Connection, and without Date.

        length: of the body; None if unknown. closes: whether the connection closes after this answer.
        Raises ValueError for a header that contains a line break.
        """
        self._protocol = request.protocol
        self._transport = self._protocol.transport
        self._writer = request.writer
        self._code = status
        self.finished = False
        self._empty = status in _WITHOUT_BODIES or request.method == hdrs.METH_HEAD
        self._chunked = False
        self._kept = request.keep_alive and not closes
        version = request.version
        complete = self._completed(headers, length, modern=version >= HttpVersion11)
        self._head = joined([_status_line(version, status), *lines(complete)])

    def _completed(
        self, headers: Iterable[tuple[str, str]], length: int | None, *, modern: bool
    ) -> list[tuple[str, str]]:
        """Return the headers, completed by framing, Content-Type, Date and Connection.

        See RFC 9112, sections 6 and 9.3; RFC 9110, section 6.6.1. modern: the client uses HTTP/1.1.
        """
        complete = [*headers]
        if length is not None and self._code not in _WITHOUT_BODIES:
            complete.append(("Content-Length", str(length)))
        elif not self._empty and modern:
            complete.append(("Transfer-Encoding", "chunked"))
            self._chunked = True
        elif not self._empty:
            self._kept = False  # the end of the connection marks the end of the body
        if not self._empty and length != 0 and not _typed(complete):
            complete.append(("Content-Type", "application/octet-stream"))
        complete.append(("Date", _date(int(time.time()))))
        if self._kept != modern:
            complete.append(("Connection", "keep-alive" if self._kept else "close"))
        return complete

    @property
    def status(self) -> int:
        """The status that was sent, or will be."""
        return self._code

    @property
    def keep_alive(self) -> bool:
        """Whether the connection stays open for another request."""
        return self._kept

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        """Return the writer. aiohttp calls this for each returned response; this one needs no preparation."""
        return self._writer

    async def write_eof(self, data: bytes = b"") -> None:
        """Called by aiohttp after its handler. Raises ConnectionError if the answer was not finished."""
        if not self.finished:
            raise ConnectionResetError("the answer is not whole")

    def write_now(self, data: bytes) -> bool:
        """Write without waiting. Returns False, with nothing written, if the client is slow or gone."""
        if self._protocol.writing_paused:
            return False
        try:
            self._send(self._framed(data))
        except ClientLeft:
            return False
        return True

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write, and wait while the client is slow. Raises ClientLeft."""
        self._send(self._framed(bytes(data)))
        if self._protocol.writing_paused:
            await self._drain()

    def flush_head(self) -> None:
        """Send the head before any of the body. Raises ClientLeft."""
        self._send(self._framed(b""))

    async def finish(self, data: bytes) -> None:
        """Write the last bytes, and wait while the client is slow. Raises ClientLeft."""
        framed = self._framed(data)
        self._send(framed + b"0\r\n\r\n" if self._chunked else framed)
        if self._protocol.writing_paused:
            await self._drain()
        self.finished = True

    def _framed(self, data: bytes) -> bytes:
        """Return the bytes to send for a piece of the body, with the head before them if that is not sent yet."""
        head, self._head = self._head, b""
        if not data or self._empty:
            return head
        return b"%b%x\r\n%b\r\n" % (head, len(data), data) if self._chunked else b"%b%b" % (head, data)

    def _send(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ClientLeft
        if data:
            self._writer.output_size += len(data)
            self._transport.write(data)

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError:
            raise ClientLeft from None


def _typed(headers: Iterable[tuple[str, str]]) -> bool:
    for name, _ in headers:  # noqa: SIM110 - it is the first of nearly all
        if name.lower() == "content-type":
            return True
    return False


@lru_cache
def _status_line(version: HttpVersion, status: int) -> str:
    return f"HTTP/{version.major}.{version.minor} {status} {_REASONS.get(status, '')}"


@lru_cache(1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
