"""Both ends of a gateway in a thread of their own: a client and the servers behind it, taking turns.

Each piece is sent when the previous one has come out, so that the gateway does the same work each time. Its work is
counted in its own thread, so nothing in this thread counts.
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

SECONDS = 30.0
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n%s\r\n\r\n"
_CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
_WHOLE = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
_USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


class Player:
    """A server that listens at `url`, and the client of a gateway whose upstream it is. To be used in one thread."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(SECONDS)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._server: list[socket.socket] = []  # connections from the gateway
        self._said = 0

    def connect(self, port: int) -> None:
        """Become a client of the gateway on this port."""
        self._client = socket.create_connection(("127.0.0.1", port), SECONDS)
        self._client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        for one in (self._listener, self._client, *self._server):
            one.close()

    def whole(self) -> None:
        """Send a request, answer it with a whole JSON body, and read the answer."""
        self._ask(n=1, stream=False)
        (server,) = self._called(1)
        said = self._word()
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        answer = json.dumps({**_WHOLE, "choices": [choice], "usage": _USAGE}).encode()
        server.sendall(_HEAD % (b"application/json", b"Content-Length: %d" % len(answer)) + answer)
        assert said.encode() in _body(self._client)

    @contextmanager
    def stream(self, n: int) -> Iterator[Sequence[socket.socket]]:
        """Request n streamed choices, each of which is a call. Yields the calls' connections, and ends the calls."""
        self._ask(n=n, stream=True)
        legs = self._called(n)
        for leg in legs:
            leg.sendall(_HEAD % (b"text/event-stream", b"Transfer-Encoding: chunked"))
            self.say(leg)
        yield legs
        for leg in legs:
            end = {"index": 0, "delta": {}, "finish_reason": "stop"}
            leg.sendall(_event({**_CHUNK, "choices": [end]}) + _piece(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        self._hear(b"0\r\n\r\n")

    def say(self, leg: socket.socket, words: int = 1) -> None:
        """Send words on one call at once, each in a chunk, and wait until the client has them."""
        said = [self._word() for _ in range(words)]
        choices = [{"index": 0, "delta": {"content": word}, "finish_reason": None} for word in said]
        leg.sendall(b"".join(_event({**_CHUNK, "choices": [choice]}) for choice in choices))
        self._hear(said[-1].encode())

    def _ask(self, *, n: int, stream: bool) -> None:
        asked = {"model": "m", "messages": [{"role": "user", "content": "Name a color."}], "stream": stream}
        fields = {**asked, "max_tokens": 64, **({"n": n} if n > 1 else {})}
        body = json.dumps(fields, separators=(",", ":")).encode()  # as OpenAI's libraries write it
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key\r\n"
        form = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._client.sendall(head + form + body)

    def _called(self, n: int) -> Sequence[socket.socket]:
        """Accept so many calls, on existing or new connections; return the connections in the order of the calls."""
        called: list[socket.socket] = []
        while len(called) < n:
            silent = [server for server in self._server if server not in called]
            for ready in select.select([self._listener, *silent], (), (), SECONDS)[0]:
                connection = self._accept() if ready is self._listener else ready
                _body(connection)
                called.append(connection)
        return called

    def _accept(self) -> socket.socket:
        connection, _ = self._listener.accept()
        connection.settimeout(SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.append(connection)
        return connection

    def _word(self) -> str:
        self._said += 1
        return f"<{self._said}>"

    def _hear(self, mark: bytes) -> None:
        heard = b""
        while mark not in heard:
            heard += _some(self._client)


def _event(chunk: object) -> bytes:
    return _piece(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def _piece(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _body(connection: socket.socket) -> bytes:
    """Read a message with a Content-Length; return its body."""
    heard = b""
    while b"\r\n\r\n" not in heard:
        heard += _some(connection)
    head, _, body = heard.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < int(lengths[0].partition(b":")[2]):
        body += _some(connection)
    return body


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 16)
    assert data, "the gateway has closed the connection"
    with suppress(UnicodeDecodeError):
        assert b'"error"' not in data, data.decode()
    return data
