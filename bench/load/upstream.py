"""A lean upstream: one process that answers thousands of streams at once, with every byte known beforehand.

    python -m bench.load.upstream --port 9001 --pace 1

It implements as much of HTTP as the gateway's client uses: whole heads, bodies by length, persistent connections. A
call has one choice whatever its `n` is; its text is `talk.text(seed, max_tokens)`. Tokens are sent by a timer wheel:
each stream has a slot, and the wheel turns once in `1 / pace` seconds, so that streams are spread evenly and none needs
a timer of its own. pace 0: all tokens at once. `GET /counts` returns the counts of calls; `POST /faults` sets the share
of calls that get a 503.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
from dataclasses import asdict, dataclass
from typing import Any, cast

import uvloop

from bench.load.stand import raise_file_limit
from bench.load.talk import PROMPT_TOKENS, text, token, written

MODEL = "load"
TICKS = 50
"""Slots of the wheel per second."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n%b\r\n"
_CLOSE = b"connection: close\r\n"


@dataclass(slots=True)
class Counts:
    """Counts of calls and connections."""

    begun: int = 0
    """Calls so far."""
    answered: int = 0
    """Calls answered to the end."""
    left: int = 0
    """Calls whose client disconnected."""
    refused: int = 0
    """Calls answered with a 503."""
    open: int = 0
    """Calls being answered."""
    most_open: int = 0
    """The maximum of `open`."""
    connections: int = 0
    """Open connections."""


class Server:
    """The state that all connections share. keep: connections serve further calls."""

    def __init__(self, pace: float, *, keep: bool) -> None:
        self.pace = pace
        self.counts = Counts()
        self.refuse = 0.0
        self.keep = keep
        self._draw = random.Random("upstream")
        self._wheel: list[list[Stream]] = [[] for _ in range(max(1, round(TICKS / pace)) if pace else 1)]
        self._spoke = 0

    def answer(self, connection: Connection, body: bytes) -> None:
        """Begin to answer one call."""
        self.counts.begun += 1
        if self.refuse and self._draw.random() < self.refuse:
            self.counts.refused += 1
            connection.say(503, b'{"error":{"message":"busy","type":"server_error","param":null,"code":null}}')
            return
        stream = Stream(connection, json.loads(body))
        connection.stream = stream
        self.counts.open += 1
        self.counts.most_open = max(self.counts.most_open, self.counts.open)
        stream.begin()
        if not self.pace:
            while not stream.over:
                stream.go_on()
            return
        self._wheel[self._draw.randrange(len(self._wheel))].append(stream)

    def ended(self, *, whole: bool) -> None:
        """Note that a call is over."""
        self.counts.open -= 1
        if whole:
            self.counts.answered += 1
        else:
            self.counts.left += 1

    async def turn(self) -> None:
        """Turn the wheel forever; late turns are caught up."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            spoke = self._wheel[self._spoke]
            for stream in spoke:
                stream.go_on()
            if any(stream.over for stream in spoke):
                self._wheel[self._spoke] = [stream for stream in spoke if not stream.over]
            self._spoke = (self._spoke + 1) % len(self._wheel)
            due += 1 / TICKS
            await asyncio.sleep(max(0.0, due - loop.time()))


class Stream:
    """One answer in progress. over: nothing more is to be sent, or the client has disconnected."""

    __slots__ = ("_at", "_before", "_connection", "_seed", "_streamed", "_tokens", "_usage", "over")

    def __init__(self, connection: Connection, asked: dict[str, Any]) -> None:
        self._connection = connection
        self._seed = int(asked.get("seed") or 0)
        self._tokens = int(asked.get("max_tokens") or 16)
        self._streamed = bool(asked.get("stream"))
        self._usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        self._at = 0
        self._before = b'{"id":"load-%d","object":"chat.completion.chunk","created":1,"model":"load"' % self._seed
        self.over = False

    def begin(self) -> None:
        """Send the head and the role; a JSON answer begins with neither."""
        if self._streamed:
            head = _STREAM % (b"" if self._connection.server.keep else _CLOSE)
            self._connection.write(head + self._choice(b'{"role":"assistant","content":""}', b"null"))

    def go_on(self) -> None:
        """Send the next token or, after the last one, the end."""
        if self.over:
            return
        if self._at < self._tokens:
            if self._streamed:
                said = written(token(self._seed, self._at))
                self._connection.write(self._choice(b'{"content":"%b"}' % said, b"null"))
            self._at += 1
        else:
            self._end()

    def _end(self) -> None:
        self.over = True
        usage = b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (
            PROMPT_TOKENS,
            self._tokens,
            PROMPT_TOKENS + self._tokens,
        )
        self._connection.done()
        if self._streamed:
            tail = _chunk(self._before + b',"choices":[],' + usage + b"}") if self._usage else b""
            self._connection.write(self._choice(b"{}", b'"length"') + tail + _chunk(b"[DONE]") + b"0\r\n\r\n")
            if not self._connection.server.keep:
                self._connection.close()
        else:
            said = written(text(self._seed, self._tokens))
            message = b'{"index":0,"message":{"role":"assistant","content":"%b"},"finish_reason":"length"}' % said
            top = self._before.replace(b".chunk", b"")
            self._connection.say(200, top + b',"choices":[' + message + b"]," + usage + b"}")

    def _choice(self, delta: bytes, finish: bytes) -> bytes:
        choice = b',"choices":[{"index":0,"delta":%b,"finish_reason":%b}]}' % (delta, finish)
        return _chunk(self._before + choice)


def _chunk(data: bytes) -> bytes:
    """Return an event in a chunk of its own."""
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


class Connection(asyncio.Protocol):
    """One connection: one call after the other."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.stream: Stream | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has only the interface
        self.server.counts.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.counts.connections -= 1
        self._transport = None
        if self.stream is not None:
            self.stream.over = True
            self.stream = None
            self.server.ended(whole=False)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        length = _LENGTH.search(self._buffer, 0, head)
        end = head + 4 + (int(length[1]) if length else 0)
        if len(self._buffer) < end:
            return
        request, self._buffer = self._buffer[:end], self._buffer[end:]
        self._take(bytes(request[: request.find(b" ", 5)]), bytes(request[head + 4 :]))

    def write(self, data: bytes) -> None:
        """Write, unless the other side has disconnected."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def say(self, status: int, body: bytes) -> None:
        """Send a whole JSON answer."""
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (status, len(body))
        self.write(head + (b"" if self.server.keep else _CLOSE) + b"\r\n" + body)
        if not self.server.keep:
            self.close()

    def done(self) -> None:
        """Note that the current call is answered."""
        self.stream = None
        self.server.ended(whole=True)

    def _take(self, target: bytes, body: bytes) -> None:
        match target:
            case b"POST /v1/chat/completions":
                self.server.answer(self, body)
            case b"GET /v1/models":
                self.say(
                    200, b'{"object":"list","data":[{"id":"load","object":"model","created":1,"owned_by":"load"}]}'
                )
            case b"GET /counts":
                self.say(200, json.dumps(asdict(self.server.counts)).encode())
            case b"POST /faults":
                self.server.refuse = float(json.loads(body)["refuse"])
                self.say(200, b"{}")
            case _:
                self.say(404, b"{}")


async def serve(port: int, pace: float, *, keep: bool) -> None:
    """Serve until the process is ended."""
    server = Server(pace, keep=keep)
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Connection(server), "127.0.0.1", port, backlog=4096)
    await server.turn()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pace", type=float, default=0.0, help="tokens a second of each stream; 0: all at once")
    parser.add_argument("--close", action="store_true", help="close the connection behind every answer")
    options = parser.parse_args()
    raise_file_limit()
    uvloop.run(serve(options.port, options.pace, keep=not options.close))


if __name__ == "__main__":
    main()
