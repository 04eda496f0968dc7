"""One connection, for one call at a time."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from nproxy.upstreams.http.errors import LostError
from nproxy.upstreams.http.reply import Reply
from nproxy.upstreams.http.sending import SLICE_BYTES, Upload, slices
from nproxy.upstreams.watchdog import Watchdogs

_NOTHING: Iterator[bytes] = iter(())
_READ_BYTES = 1 << 16


class Connection(asyncio.Protocol):
    """A socket that carries one call at a time.

    watchdogs: those to which its calls' watchdogs belong. done: called when an answer was read whole and the connection
    can carry another one. lost: called once it is closed. doubled: those that hold a second file. may_double: whether
    one more may be opened. served: it has carried a call. since: when that ended, in the loop's time.
    """

    __slots__ = (
        "_done",
        "_doubled",
        "_lost",
        "_may_double",
        "_poll",
        "_reply",
        "_second",
        "_slices",
        "_transport",
        "_writable",
        "loop",
        "served",
        "since",
        "watchdogs",
    )

    def __init__(
        self,
        watchdogs: Watchdogs,
        done: Callable[[Connection], None],
        lost: Callable[[Connection], None],
        doubled: set[Connection],
        may_double: Callable[[], bool],
    ) -> None:
        self.loop = watchdogs.loop
        self.watchdogs = watchdogs
        self._done = done
        self._lost = lost
        self._doubled = doubled
        self._may_double = may_double
        self._transport: asyncio.Transport | None = None
        self._poll: select.poll | None = None
        self._reply: Reply | None = None
        self._slices: Iterator[bytes | memoryview] = _NOTHING
        self._second: socket.socket | None = None  # the same socket, if it may break while a body is sent
        self._writable: asyncio.Future[None] | None = None
        self.served = False
        self.since = 0.0

    @property
    def usable(self) -> bool:
        """Whether a call may be sent on it, as far as is known."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def transport(self) -> asyncio.Transport | None:
        """Its transport while it is open, else None."""
        return self._transport

    @property
    def quiet(self) -> bool:
        """Whether nothing has come that the loop has not seen: the end, or data that would pass for the next answer."""
        if self._transport is None:
            return False
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._transport.get_extra_info("socket"), select.POLLIN)
        return not self._poll.poll(0)

    def send(self, method: str, head: bytes, body: Sequence[bytes] | Upload) -> Reply:
        """Send a request. The caller must close the answer, however the call ends."""
        reply = self._reply = Reply(self, method, self.served, isinstance(body, Upload))
        self.served = True
        transport = self._transport
        if transport is None:  # it broke as soon as it was established
            reply.ended(None)
        elif isinstance(body, Upload):
            self._open_second()
            body.begin(reply, head)
        elif sum(map(len, body)) <= SLICE_BYTES:
            transport.write(b"".join((head, *body)))
        else:
            self._open_second()
            transport.write(head)
            self._slices = slices(body)
            self._pump()
        return reply

    def write(self, data: bytes | memoryview) -> None:
        """Write bytes; nothing happens once it is closed."""
        if self._transport is not None:
            self._transport.write(data)

    async def writable(self) -> None:
        """Wait while the transport's write buffer is full."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def release(self, *, reusable: bool) -> None:
        """The answer was read whole: keep the connection for another call if possible, else close it."""
        unsent = next(self._slices, None) is not None
        self._reply, self._slices = None, _NOTHING
        self.close_second()
        if reusable and not unsent and self._writable is None and self.usable:
            self._done(self)
        elif unsent or self._transport is None or self._transport.get_write_buffer_size():
            self.abort()  # a server that reads no further would keep the socket open as long as it likes
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close the socket at once, even if something is still to be written or to come."""
        reply, self._reply, self._slices = self._reply, None, _NOTHING
        self.close_second()
        if reply is not None:
            reply.fail(LostError())
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading from the socket."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read from the socket again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _pump(self) -> None:
        """Write as much of a long body as the transport takes."""
        while self._writable is None and (piece := next(self._slices, None)) is not None:
            self.write(piece)

    def _open_second(self) -> None:
        """Keep the socket readable if writing to it fails, which closes the transport.

        A server may answer and close before it has read a long body, for example one that is too large. Its answer may
        be here, unread, when the next write fails. Not for TLS, where only the transport can read what came.
        """
        transport = self._transport
        if self._second is not None or transport is None or transport.get_extra_info("ssl_object") is not None:
            return
        if self._may_double():
            with suppress(OSError):  # no file descriptor is left
                self._second = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
                self._doubled.add(self)

    def close_second(self) -> None:
        """Close its second file, if it has one."""
        if self._second is not None:
            self._second.close()
            self._second = None
            self._doubled.discard(self)

    def _read_rest(self, second: socket.socket, reply: Reply) -> None:
        """Give the reply what had come when writing failed."""
        with suppress(OSError):  # the connection broke, or there is nothing more
            while self._reply is reply:
                data = second.recv(_READ_BYTES)
                if data:
                    reply.received(data)
                elif reply.has_begun:
                    reply.ended(None)
                else:
                    return

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's are no subclasses of asyncio's

    def data_received(self, data: bytes) -> None:
        """Give the bytes to the answer; close a connection on which nothing was asked."""
        if self._reply is not None:
            self._reply.received(data)
        else:
            self.abort()  # no request was sent

    def eof_received(self) -> None:
        """The peer sends nothing more. The socket is closed then, even if something is still to be written."""
        if self._reply is not None:
            self._reply.ended(None)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer, after what had come before the connection broke."""
        self._transport = None
        self.resume_writing()
        second, self._second = self._second, None
        if second is not None:
            self._doubled.discard(self)
            if self._reply is not None:
                self._read_rest(second, self._reply)
            second.close()
        if self._reply is not None:
            # Without `eof_received` and without an error: TLS whose underlying connection was closed (RFC 9112, 9.8).
            self._reply.ended(exc or EOFError())
            self._reply = None
        self._lost(self)

    def pause_writing(self) -> None:
        """The transport's write buffer is full."""
        self._writable = self.loop.create_future()

    def resume_writing(self) -> None:
        """It has room again."""
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
            self._pump()
