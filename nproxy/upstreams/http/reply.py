"""The answer to one call, as it arrives on a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeAlias

from nproxy.upstreams.http.errors import HTTPError, LostError, MalformedError, UploadError
from nproxy.upstreams.http.message import Head, Message
from nproxy.upstreams.watchdog import Watchdog, Watchdogs

HIGH_WATER = 128 << 10
"""While more bytes of an answer than this wait to be taken, its socket is not read."""

STALE_SECONDS = 1.0
"""If the peer had closed the connection before, this shows within so long: far more than a round trip takes."""

Pour: TypeAlias = Callable[[bytes], asyncio.Future[None] | None]
"""Takes a segment of a body. Returns a future to wait for before the next one, None for no wait."""


class Line(Protocol):
    """The connection, as the answer on it uses it."""

    loop: asyncio.AbstractEventLoop
    watchdogs: Watchdogs

    def write(self, data: bytes) -> None:
        """Write bytes of a body."""
        ...

    async def writable(self) -> None:
        """Wait until there is room for more."""
        ...

    def pause(self) -> None:
        """Read no more for now."""
        ...

    def resume(self) -> None:
        """Read again."""
        ...

    def release(self, *, reusable: bool) -> None:
        """Be told that the answer was read whole. reusable: another call may follow."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


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

    def __init__(self, connection: Line, method: str, reused: bool, sending: bool) -> None:
        self.loop = connection.loop
        self._connection: Line | None = connection
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
