"""One connection, and the answer that arrives on it."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeAlias

from nproxy.upstreams.http.errors import HTTPError, LostError, MalformedError, UploadError
from nproxy.upstreams.http.message import Head, Message
from nproxy.upstreams.http.sending import SLICE_BYTES, Upload, slices
from nproxy.upstreams.watchdog import Watchdog, Watchdogs

HIGH_WATER = 128 << 10
"""While more bytes of an answer than this wait to be taken, its socket is not read."""

STALE_SECONDS = 1.0
"""If the peer had closed the connection before, this shows within so long: far more than a round trip takes."""

Pour: TypeAlias = Callable[[bytes], asyncio.Future[None] | None]
"""Takes a segment of a body. Returns a future to wait for before the next one, None for no wait."""

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
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
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
        self._transport = transport  # type: ignore[assignment]  # uvloop's are no subclasses of asyncio's

    def data_received(self, data: bytes) -> None:
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
        self._writable = self.loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
            self._pump()


class Reply:
    """The answer to one call as it comes. Use `begun`, then `read` until nothing is left, or `pour`, then `close`.

    reused: the connection had carried a call before. watchdog: closes the answer when the deadline set on it passes.
    """

    __slots__ = (
        "_connection",
        "_error",
        "_fault",
        "_message",
        "_paused",
        "_pour",
        "_room",
        "_sending",
        "_sent",
        "_waiter",
        "loop",
        "reused",
        "watchdog",
    )

    def __init__(self, connection: Connection, method: str, reused: bool, sending: bool) -> None:
        self.loop = connection.loop
        self._connection: Connection | None = connection
        self._message = Message(method)
        self._error: HTTPError | None = None
        self._fault: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._pour: Pour | None = None
        self._room: asyncio.Future[None] | None = None
        self._paused = False
        self._sending = sending
        self._sent = connection.loop.time()
        self.reused = reused
        self.watchdog = Watchdog(connection.watchdogs, self.close)

    @property
    def head(self) -> Head:
        """The head of an answer that has begun."""
        head = self._message.head
        if head is None:
            raise RuntimeError("the answer has not begun")
        return head

    @property
    def has_begun(self) -> bool:
        """Whether the head has come."""
        return self._message.head is not None

    @property
    def stale(self) -> bool:
        """Whether the connection had carried a call before, and at once ended without an answer: it was stale.

        A connection that ends later may have carried the request, and its receiver may have begun to process it.
        """
        soon = self.loop.time() - self._sent < STALE_SECONDS
        return self.reused and soon and self._message.silent and not isinstance(self._error, UploadError)

    @property
    def at_end(self) -> bool:
        """Whether the whole body was taken."""
        return self._message.complete and not self._message.waiting

    async def begun(self) -> None:
        """Wait for the head. Raises HTTPError if none comes."""
        while self._message.head is None:
            if self._error is not None:
                raise self._error
            await self._more()

    async def read(self) -> bytes:
        """Return what has come of the body; wait if nothing has. Empty at the end of the body. Raises HTTPError."""
        while (data := self.at_hand()) is None:
            await self._more()
        return data

    def at_hand(self) -> bytes | None:
        """Like `read`, but return None instead of waiting."""
        message = self._message
        if message.waiting:
            return self._taken()
        if self._error is not None:
            raise self._error
        return b"" if message.complete else None

    async def pour(self, into: Pour) -> None:
        """Pass on the body as it comes, each segment at once when it is read from the socket, until its end.

        What comes while `into` waits is kept, and passed on in one piece. Raises HTTPError, and what `into` raises.
        """
        self._pour = into
        try:
            self._flow()
            while self._fault is None:
                if self._room is None and self._error is not None:
                    raise self._error
                if self._room is None and self.at_end:
                    return
                await self._more()
            raise self._fault
        finally:
            self._pour = None

    def close(self) -> None:
        """End the use of the answer. If it was not read whole, its socket is closed at once."""
        self.watchdog.stop()
        self._pour = None
        if self._message.waiting:
            self._error = LostError()  # it has come whole, but was not taken whole
        self._message.abandon()
        if self._connection is not None:
            self.fail(LostError())

    def _flow(self) -> None:
        """Pass on what has come, unless `into` waits."""
        while self._pour is not None and self._room is None and self._message.waiting:
            try:
                room = self._pour(self._taken())
            except Exception as fault:  # a fault of the receiver, not of the connection, which calls this
                self._fault = fault
                self.close()
                return
            if room is not None:
                self._room = room
                room.add_done_callback(self._has_room)

    def _has_room(self, _: object) -> None:
        self._room = None
        self._flow()
        self._wake()

    def _taken(self) -> bytes:
        if self._paused:
            self._paused = False
            if self._connection is not None:
                self._connection.resume()
        return self._message.take()

    def _more(self) -> asyncio.Future[None]:
        """What to await until something has changed."""
        self._waiter = waiter = self.loop.create_future()
        return waiter

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # Called by the connection and by the upload

    def received(self, data: bytes) -> None:
        """Take a segment from the socket."""
        message = self._message
        try:
            message.feed(data)
        except MalformedError as error:
            self._flow()  # what came before the fault in the same segment
            self.fail(error)
            return
        if message.complete:
            self._whole()
        if self._pour is not None and message.waiting:
            self._flow()
            if not message.complete and not message.waiting:
                return  # `pour` waits for the end, and need not wake up
        if message.waiting > HIGH_WATER and not self._paused and self._connection is not None:
            self._paused = True
            self._connection.pause()
        self._wake()

    def ended(self, error: Exception | None) -> None:
        """Nothing more comes. error: set if the connection broke."""
        if error is not None:
            self.fail(LostError(error if isinstance(error, OSError) else None))
            return
        try:
            self._message.end()
        except HTTPError as early:
            self.fail(early)
        else:
            self._whole()
            self._wake()

    def fail(self, error: HTTPError) -> None:
        """Give up an answer that is not complete."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._error = error
        connection.abort()
        self._wake()

    def _whole(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._paused:
            self._paused = False
            connection.resume()
        connection.release(reusable=self._message.reusable and not self._sending)

    def write(self, data: bytes) -> None:
        """Send more of the body; nothing happens if the call is over."""
        if self._connection is not None:
            self._connection.write(data)

    async def writable(self) -> None:
        """Wait until more of the body can be sent. Raises LostError if the call is over."""
        if self._connection is None:
            raise LostError
        await self._connection.writable()

    def sent(self) -> None:
        """Note that the whole body is sent."""
        self._sending = False
