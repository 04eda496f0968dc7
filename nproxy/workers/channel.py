"""One end of the socket pair between the parent and a worker."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import AsyncIterator, Callable
from typing import cast

from nproxy.concurrency.shared_runs import SharedRuns
from nproxy.workers.frames import Frames, FrameTooLong, frame
from nproxy.workers.messages import Admission, Json, Message, NotAMessage, Query, Question, Result, decode, encode

MOST_UNREAD = 64 << 20
"""A peer counts as dead if more bytes wait for it to read them when there is another message for it."""

log = logging.getLogger("nproxy.workers")


class ChannelClosed(Exception):
    """The channel is closed, so there will be no answer."""


class Channel(asyncio.Protocol):
    """Sends and receives messages. It never blocks, and never raises because of what the peer does.

    It closes when the peer is gone, has sent something that is not a message, or does not read its messages.

    Of messages of admission control there are three for every request. Those that are sent in one turn of the loop are
    written together. They are received by `admission` as they come, before messages that wait to be taken from
    `messages()`; without it, they are dropped. If it raises NotAMessage, the channel closes.

    heard: the number of messages received so far.
    """

    def __init__(self) -> None:
        self.heard = 0
        self.admission: Callable[[Admission], None] | None = None  # a client that has asked nothing has nothing to hear
        self._together: list[bytes] = []  # messages of admission control, framed
        self._inbox: asyncio.Queue[Message | None] = asyncio.Queue()
        self._closed = asyncio.Event()
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Json]] = {}
        self._questions = SharedRuns(self._ask)

    async def messages(self) -> AsyncIterator[Message]:
        """Yield the received messages until the channel closes, except answers to `ask` and those for `admission`."""
        while (message := await self._inbox.get()) is not None:
            yield message

    def send(self, message: Message) -> None:
        """Write a message to the socket. If the channel is closed, or the message is too long, it is dropped."""
        try:
            framed = frame(encode(message))
        except FrameTooLong:
            log.error("a message is too long and was not sent", extra={"fields": {"kind": message.kind}})  # noqa: TRY400
            return
        self._together.append(framed)
        if not isinstance(message, Admission):
            self._write()
        elif len(self._together) == 1:
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        """Write what is to be sent, unless the channel is closed."""
        data = b"".join(self._together)
        self._together.clear()
        if not data or self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > MOST_UNREAD:
            log.error("a peer does not read its messages; the channel is closed")
            self._transport.abort()
        else:
            self._transport.write(data)

    async def ask(self, what: Question, seconds: float) -> Json:
        """Ask the peer, and return its answer. Raises ChannelClosed, and TimeoutError after so many seconds.

        The peer has one query of a kind at a time, however many ask and leave; those who ask meanwhile share the next.
        """
        if self._transport is None or self._transport.is_closing():
            raise ChannelClosed
        async with asyncio.timeout(seconds):
            return await self._questions.result((what, seconds))

    async def _ask(self, question: tuple[Question, float]) -> Json:
        what, seconds = question
        if self._closed.is_set():
            raise ChannelClosed
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.send(Query(number, what))
        try:
            async with asyncio.timeout(seconds):
                return await answer
        finally:
            del self._asked[number]

    @property
    def unread(self) -> int:
        """Bytes that the peer has not read yet, as far as they are in this process's write buffer."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    async def closed(self) -> None:
        """Wait until the channel is closed."""
        await self._closed.wait()

    def close(self) -> None:
        """Close the channel after everything is written."""
        self._write()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the channel now, even if messages are not written yet."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass of asyncio's

    def data_received(self, data: bytes) -> None:
        """Take messages as they become whole; close a channel with anything else on it."""
        try:
            for payload in self._frames.feed(data):
                self._take(decode(payload))
        except (FrameTooLong, NotAMessage):
            log.error("invalid data on a channel; the channel is closed")  # noqa: TRY400 - no traceback: it would show the bytes
            if self._transport is not None:
                self._transport.abort()

    def _take(self, message: Message) -> None:
        self.heard += 1
        if isinstance(message, Admission):
            if self.admission is not None:
                self.admission(message)
        elif not isinstance(message, Result):
            self._inbox.put_nowait(message)
        elif (asked := self._asked.get(message.number)) is not None and not asked.done():
            asked.set_result(message.data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End what waits for a message or an answer: the latter with ChannelClosed."""
        self._closed.set()
        self._inbox.put_nowait(None)
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(ChannelClosed())


async def connect(end: socket.socket) -> Channel:
    """Return a channel over this end of a socket pair. The channel owns the socket from now on."""
    end.setblocking(False)
    _, channel = await asyncio.get_running_loop().create_unix_connection(Channel, sock=end)
    return channel
