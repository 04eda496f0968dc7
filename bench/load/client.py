"""A lean client: asks, reads the answer as it comes, and checks every byte of every choice.

    client = Client("127.0.0.1", 8000)
    outcome = await client.ask(Ask(seed=5, n=8, tokens=30))      # choice i says talk.text(5 + i, 30), or it is `wrong`

One connection per client, kept as long as the gateway keeps it. What the answer is measured against follows from what
was asked; nothing is stored but how far each choice has got.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import orjson

from bench.load.talk import PROMPT_TOKENS, RING, WIDTH, start
from bench.load.tape import Tape

Kind = Literal["ok", "wrong", "refused", "error", "cut", "left", "hang"]
How = Literal["close", "reset", "half-close"]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. leave: after so many seconds the client goes, in the way of `how`.

    cuts: answers of the upstream are cut, and where that is behind the text, nobody knows what it cost: an answer may
    lack its usage.
    """

    seed: int
    n: int
    tokens: int
    stream: bool = True
    leave: float | None = None
    how: How = "close"
    cuts: bool = False

    def http(self, key: str) -> bytes:
        """The request's bytes."""
        body: dict[str, Any] = {
            "model": "load",
            "messages": [{"role": "user", "content": "Say what your seed says."}],
            "n": self.n,
            "seed": self.seed,
            "max_tokens": self.tokens,
        }
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        data = json.dumps(body).encode()
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: load\r\n{authorization}Content-Type: application/json\r\n"
        return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


@dataclass(slots=True)
class Outcome:
    """How a request ended.

    ok: every byte of every choice was right, and nothing was missing. refused: 429 or 503 before the stream began.
    error: another status, or an error event. cut: the connection ended before the answer. seconds: to its end. first:
    to its first text. port: the client's.
    """

    kind: Kind
    detail: str = ""
    status: int = 0
    seconds: float = 0.0
    first: float | None = None
    port: int = 0


class Wrong(Exception):
    """The answer is not what was asked for."""


class _Check:
    """An answer held against what it must be. said: characters of each choice so far."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._starts = [start(ask.seed + index) for index in range(ask.n)]
        self.said = [0] * ask.n
        self._finished = [False] * ask.n
        self._usage = False
        self.done = False
        self.error: str | None = None

    def event(self, data: bytes) -> int:
        """Take one event; gives how many characters of text it brought. Raises Wrong."""
        if self.done or self.error is not None:
            raise Wrong(f"something behind the end: {data[:100]!r}")
        if data == b"[DONE]":
            self._end()
            return 0
        chunk = orjson.loads(data)
        if "error" in chunk:
            self.error = str(chunk["error"].get("message"))
            return 0
        if (usage := chunk.get("usage")) is not None:
            self._count(usage)
        brought = 0
        for choice in chunk["choices"]:
            brought += self._take(choice["index"], choice["delta"].get("content") or "", choice["finish_reason"])
        return brought

    def whole(self, body: bytes) -> None:
        """Take a whole answer in JSON form. Raises Wrong."""
        answer = orjson.loads(body)
        if sorted(choice["index"] for choice in answer["choices"]) != list(range(self._ask.n)):
            raise Wrong("not the choices that were asked for")
        for choice in answer["choices"]:
            self._take(choice["index"], choice["message"]["content"], choice["finish_reason"])
        self._count(answer["usage"])
        self._end()

    def _take(self, index: int, text: str, finish: str | None) -> int:
        if text:
            at = self.said[index]
            if self._finished[index] or not RING.startswith(text, self._starts[index] + at):
                raise Wrong(f"choice {index} says {text!r} at {at}")
            self.said[index] = at + len(text)
        if finish is not None:
            if finish != "length" or self._finished[index] or self.said[index] != self._ask.tokens * WIDTH:
                raise Wrong(f"choice {index} ends by {finish} at {self.said[index]}")
            self._finished[index] = True
        return len(text)

    def _count(self, usage: dict[str, int]) -> None:
        expected = (PROMPT_TOKENS, self._ask.tokens * self._ask.n)
        if self._usage or (usage["prompt_tokens"], usage["completion_tokens"]) != expected:
            raise Wrong(f"usage {usage} instead of {expected}")
        self._usage = True

    def _end(self) -> None:
        if not all(self._finished):
            raise Wrong(f"the answer is over, and its choices are not: {self.said}")
        if not self._usage and not self._ask.cuts:
            raise Wrong("no usage")
        self.done = True


@dataclass(slots=True)
class _Reading(asyncio.Protocol):
    """One connection: the bytes of answers taken apart, as HTTP and as events."""

    tape: Tape
    transport: asyncio.Transport | None = None
    ended: asyncio.Future[Outcome] | None = None
    check: _Check | None = None
    asked_at: float = 0.0
    first: float | None = None
    last: float = 0.0
    reusable: bool = True
    port: int = 0
    _buffer: bytes = b""
    _status: int = 0
    _length: int | None = None  # None: in chunks
    _events: bytes = b""
    _body: bytearray = field(default_factory=bytearray)
    _clock: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._clock = asyncio.get_running_loop().time
        self.port = transport.get_extra_info("sockname")[1]

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._over(Outcome("cut", "" if exc is None else type(exc).__name__, self._status))

    def begin(self, ask: Ask, key: str) -> asyncio.Future[Outcome]:
        """Send a request; gives what becomes of it."""
        assert self.transport is not None
        self.ended = asyncio.get_running_loop().create_future()
        self.check = _Check(ask)
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
    """Asks one thing after the other. hang: seconds after which an answer that has not ended is given up."""

    def __init__(self, host: str, port: int, tape: Tape, *, key: str = "", hang: float = 120.0) -> None:
        self._address = host, port
        self._tape = tape
        self._key = key
        self._hang = hang
        self._reading: _Reading | None = None

    async def ask(self, ask: Ask) -> Outcome:
        """Ask, and read the answer to its end, or leave before it; nothing is raised."""
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
            transport.write_eof()  # and nobody reads any more
            transport.pause_reading()
            await asyncio.sleep(random.random())
            transport.abort()
            return
        if how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
