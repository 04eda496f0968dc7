"""A lean client: sends requests, reads the answers as they arrive, and checks every byte of every choice.

    client = Client("127.0.0.1", 8000)
    outcome = await client.ask(Ask(seed=5, n=8, tokens=30))      # choice i says talk.text(5 + i, 30), or it is `wrong`

One connection per client, kept as long as the gateway keeps it. The expected answer follows from the request; only the
position within each choice is stored.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from bench.load.ask import Ask, How, Outcome
from bench.load.check import Check, Wrong
from bench.load.tape import Tape


@dataclass(slots=True)
class _Reading(asyncio.Protocol):
    """One connection: parses the bytes of answers, as HTTP and as events."""

    tape: Tape
    transport: asyncio.Transport | None = None
    ended: asyncio.Future[Outcome] | None = None
    check: Check | None = None
    asked_at: float = 0.0
    first: float | None = None
    last: float = 0.0
    reusable: bool = True
    port: int = 0
    _buffer: bytes = b""
    _status: int = 0
    _length: int | None = None  # None: chunked
    _events: bytes = b""
    _body: bytearray = field(default_factory=bytearray)
    _clock: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has only the interface
        self._clock = asyncio.get_running_loop().time
        self.port = transport.get_extra_info("sockname")[1]

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._over(Outcome("cut", "" if exc is None else type(exc).__name__, self._status))

    def begin(self, ask: Ask, key: str) -> asyncio.Future[Outcome]:
        """Send a request; returns a future of its outcome."""
        assert self.transport is not None
        self.ended = asyncio.get_running_loop().create_future()
        self.check = Check(ask)
        self._status, self._length, self._buffer, self._events = 0, None, b"", b""
        self._body.clear()
        self.first, self.asked_at = None, self._clock()
        self.transport.write(ask.http(key))
        return self.ended

    def data_received(self, data: bytes) -> None:
        try:
            self._take(self._buffer + data if self._buffer else data)
        except (Wrong, ValueError, KeyError, IndexError) as error:
            self._over(Outcome("wrong", f"{type(error).__name__}: {error}", self._status))
            if self.transport is not None:
                self.transport.abort()

    def _take(self, data: bytes) -> None:
        at = 0
        if not self._status:
            at = self._head(data)
            if not at:
                self._buffer = data
                return
        if self._length is not None:
            self._buffer = b""
            self._body += data[at:]
            if len(self._body) >= self._length:
                self._whole()
            return
        while (line := data.find(b"\r\n", at)) >= 0:
            size = int(data[at:line], 16)
            end = line + 2 + size
            if len(data) < end + 2:
                break
            if not size:
                self._end_of_stream()
                return
            self._read_events(data[line + 2 : end])
            at = end + 2
        self._buffer = data[at:]

    def _head(self, data: bytes) -> int:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return 0
        lines = data[:end].lower().split(b"\r\n")
        self._status = int(lines[0].split(b" ")[1])
        headers = dict(line.split(b": ", 1) for line in lines[1:])
        if headers.get(b"connection") == b"close":
            self.reusable = False
        if (length := headers.get(b"content-length")) is not None:
            self._length = int(length)
        return end + 4

    def _read_events(self, data: bytes) -> None:
        assert self.check is not None
        *events, self._events = (self._events + data).split(b"\n\n")
        now = self._clock()
        brought = 0
        for event in events:
            if not event.startswith(b":"):
                brought += self.check.event(event.removeprefix(b"data: "))
        if brought:
            if self.first is None:
                self.first = now - self.asked_at
            else:
                self.tape.gap(now - self.last)
            self.last = now
            self.tape.characters += brought

    def _whole(self) -> None:
        body, check = bytes(self._body), self.check
        assert check is not None
        if self._status == 200:
            check.whole(body)
            self.tape.characters += sum(check.said)
            self._over(Outcome("ok", "", 200))
            return
        message = orjson.loads(body)["error"]["message"]
        self._over(Outcome("refused" if self._status in (429, 503) else "error", message, self._status))

    def _end_of_stream(self) -> None:
        self._buffer = b""
        assert self.check is not None
        if self.check.error is not None:
            self._over(Outcome("error", self.check.error, self._status))
        elif not self.check.done:
            raise Wrong("a stream that ends without [DONE]")
        else:
            self._over(Outcome("ok", "", self._status))

    def _over(self, outcome: Outcome) -> None:
        if self.ended is not None and not self.ended.done():
            outcome.seconds = self._clock() - self.asked_at
            outcome.first = self.first
            outcome.port = self.port
            self.ended.set_result(outcome)


class Client:
    """Sends one request after the other. hang: seconds after which an answer that has not ended is given up."""

    def __init__(self, host: str, port: int, tape: Tape, *, key: str = "", hang: float = 120.0) -> None:
        self._address = host, port
        self._tape = tape
        self._key = key
        self._hang = hang
        self._reading: _Reading | None = None

    async def ask(self, ask: Ask) -> Outcome:
        """Send a request, and read its answer to the end or disconnect before; raises nothing."""
        outcome = await self._ask(ask)
        self._tape.count(outcome)
        return outcome

    def close(self) -> None:
        if self._reading is not None and self._reading.transport is not None:
            self._reading.transport.abort()
        self._reading = None

    async def _ask(self, ask: Ask) -> Outcome:
        loop = asyncio.get_running_loop()
        reading = self._reading
        if reading is None or reading.transport is None or not reading.reusable or reading.transport.is_closing():
            self.close()
            try:
                _, reading = await loop.create_connection(lambda: _Reading(self._tape), *self._address)
            except OSError as error:
                return Outcome("cut", f"connect: {error}")
            self._reading = reading
        ended = reading.begin(ask, self._key)
        try:
            async with asyncio.timeout(self._hang if ask.leave is None else ask.leave):
                return await asyncio.shield(ended)
        except TimeoutError:
            if ask.leave is None:
                self.close()
                return Outcome("hang", f"no end within {self._hang} s; said {reading.check and reading.check.said}")
            await self._go(reading, ask.how)
            return Outcome("left")

    async def _go(self, reading: _Reading, how: How) -> None:
        transport = reading.transport
        self._reading = None
        if transport is None:
            return
        sock: socket.socket = transport.get_extra_info("socket")
        if how == "half-close":
            transport.write_eof()  # and nothing is read any more
            transport.pause_reading()
            await asyncio.sleep(random.random())
            transport.abort()
            return
        if how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
