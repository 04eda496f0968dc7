"""A scripted upstream: a real HTTP server on loopback that can misbehave, and records what it saw.

    async with FakeUpstream(Behaviour(n="native")) as upstream:
        ...                                  # point the gateway at upstream.url
        assert len(upstream.calls) == 1

`upstream.behaviour` says how generation calls are answered. `upstream.script(b0, b1, ...)` takes precedence for the
next calls, one each. `upstream.choose = lambda call: Behaviour(...) or None` decides by what was sent. It records
`calls` (POSTs to the two generation endpoints), `requests` (everything), `most_at_once`, `open_calls` and `waiting`.
Await `upstream.until(lambda: condition)` instead of sleeping: the condition is checked whenever something happens.

Answers are made from the seed: choice j of a call with seed s says `words(s + j)`, so equal seeds give equal texts.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from aiohttp import web
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from multidict import CIMultiDict

from tests.fakes.answers import Answer
from tests.fakes.behaviour import MODEL, Behaviour, words
from tests.ports import free_port

__all__ = ["MODEL", "Behaviour", "FakeUpstream", "Seen", "at_once", "raw_server", "words"]

_T = TypeVar("_T")

BACKLOG = 4096
"""Connections that may wait to be accepted. Tests open hundreds at once from the same event loop. The kernel retries a
connection that finds no room after one second, then after two, until the gateway gives it up.
"""


@dataclass
class Seen:
    """One request as it arrived, and how it ended. Times are the loop's."""

    method: str
    target: str
    headers: CIMultiDict[str]
    raw: bytes
    opened: float
    closed: float | None = None
    sent: int = 0  # bytes of a stream that were passed to the socket
    cancelled: bool = False  # the client closed the connection before the answer was complete

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class FakeUpstream:
    """See the module. models: the ids in its list. list_fails: the list is a 500. unix: a socket to listen on.

    list_hangs: to be set; the list does not come.
    """

    def __init__(
        self,
        behaviour: Behaviour | None = None,
        *,
        models: list[str] | None = None,
        list_fails: bool = False,
        unix: str | None = None,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.behaviour = behaviour or Behaviour()
        self.models = models or [MODEL]
        self.list_fails = list_fails
        self.list_hangs = False
        self.unix = unix
        self.host = host
        self.tls = tls
        self.choose: Callable[[Seen], Behaviour | None] | None = None
        self.requests: list[Seen] = []
        self.most_at_once = 0
        self.waiting = 0  # calls that wait for another one to end
        self._turn = asyncio.Lock()
        self.connections = 0
        self._scripted: list[Behaviour] = []
        self._pulse = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._http: web.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """The URL for a gateway's configuration."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"unix:{self.unix}" if self.unix else f"http://{host}:{self.port}/v1"

    @property
    def calls(self) -> list[Seen]:
        return [seen for seen in self.requests if seen.path in ("/v1/chat/completions", "/v1/completions")]

    @property
    def open_calls(self) -> list[Seen]:
        return [seen for seen in self.calls if seen.closed is None]

    def script(self, *behaviours: Behaviour) -> None:
        """Answer the next calls like this, one each; then `choose` and `behaviour` apply again."""
        self._scripted.extend(behaviours)

    async def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        """Wait until the condition holds. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while not condition():
                await self._pulse.wait()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        http = web.Server(self._handle, handler_cancellation=True, access_log=None, auto_decompress=False)
        self._http = http

        def connection() -> asyncio.Protocol:
            self.connections += 1
            return http()

        if self.unix:
            self._server = await loop.create_unix_server(connection, self.unix, backlog=BACKLOG)
        else:
            self.port = self.port or free_port()  # no other process gets it while the server is stopped
            self._server = await loop.create_server(connection, self.host, self.port, ssl=self.tls, backlog=BACKLOG)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Close the port and every connection; `async with` may start the server again on the same port."""
        assert self._server is not None and self._http is not None
        self._server.close()
        self._http.pre_shutdown()  # so that shutdown does not wait for idle connections
        await self._http.shutdown(0.1)
        await self._server.wait_closed()

    def _note(self) -> None:
        pulse, self._pulse = self._pulse, asyncio.Event()
        pulse.set()

    async def _handle(self, request: BaseRequest) -> StreamResponse:
        loop = asyncio.get_running_loop()
        seen = Seen(request.method, request.raw_path, request.headers.copy(), b"", loop.time())
        self.requests.append(seen)
        self._note()
        try:
            seen.raw = await _whole(request)
            self.most_at_once = max(self.most_at_once, len(self.open_calls))
            self._note()
            return await self._answer(request, seen)
        except (asyncio.CancelledError, ConnectionError):
            seen.cancelled = True
            raise
        finally:
            seen.closed = loop.time()
            self._note()

    async def _answer(self, request: BaseRequest, seen: Seen) -> StreamResponse:
        if seen not in self.calls:
            return await self._other(request, seen)
        behaviour = self._behaviour_for(seen)
        if not behaviour.one_at_a_time:
            return await self._generate(request, seen, behaviour)
        self.waiting += 1
        self._note()
        try:
            await self._turn.acquire()
        finally:
            self.waiting -= 1
        try:
            return await self._generate(request, seen, behaviour)
        finally:
            self._turn.release()

    async def _generate(self, request: BaseRequest, seen: Seen, behaviour: Behaviour) -> StreamResponse:
        if behaviour.hold is not None:
            await behaviour.hold.wait()
        if not behaviour.request_id and not _is_uuid(seen.headers.get("x-request-id", "")):
            return web.Response(status=400)
        if behaviour.before_head:
            _break(request, reset=behaviour.before_head == "reset")
            raise ConnectionResetError
        refused = _refusal(behaviour, seen.body)
        if refused is not None:
            return web.json_response({"error": refused}, status=400)
        if behaviour.body is not None or behaviour.status != 200:
            return await _verbatim(request, behaviour)
        answer = Answer(behaviour, seen.body, chat=seen.path.endswith("/chat/completions"), id=f"fake-{id(seen):x}")
        if answer.streamed and not behaviour.json_for_stream:
            return await self._stream(request, seen, behaviour, answer)
        if behaviour.pause:
            await asyncio.sleep(behaviour.pause)
        return web.json_response(answer.whole(), headers=behaviour.headers)

    def _behaviour_for(self, seen: Seen) -> Behaviour:
        if self._scripted:
            return self._scripted.pop(0)
        return (self.choose(seen) if self.choose is not None else None) or self.behaviour

    async def _stream(self, request: BaseRequest, seen: Seen, behaviour: Behaviour, answer: Answer) -> StreamResponse:
        response = StreamResponse(
            headers={"Content-Type": behaviour.content_type or "text/event-stream", **behaviour.headers}
        )
        await response.prepare(request)

        kept = bytearray()

        async def send(data: bytes) -> None:
            if behaviour.one_write:
                kept.extend(data.replace(b"\n", behaviour.newline))
            else:
                await _in_segments(response, data.replace(b"\n", behaviour.newline), behaviour.segment)
                seen.sent += len(data)

        await send(behaviour.preamble)
        for _ in range(behaviour.pings):
            await send(b": keep-alive\n\n")
            await asyncio.sleep(behaviour.ping_pause)
        for number, chunk in enumerate(answer.chunks()):
            if number == behaviour.hold_after:
                await behaviour.go_on.wait()
            if behaviour.pause:
                await asyncio.sleep(behaviour.pause)
            if number and behaviour.one_at_a_time and self.waiting:
                await send(behaviour.frame(b"[DONE]"))
                await response.write_eof()
                return response
            if number == behaviour.end_after:
                if behaviour.end == "close":
                    await response.write_eof()
                    return response
                if behaviour.end in ("reset", "cut"):
                    await asyncio.sleep(0.01)  # so that what was written leaves first
                    _break(request, reset=behaviour.end == "reset")
                    raise ConnectionResetError
                await send(b'data: {"choices": [{"ind\n\n' if behaviour.end == "malformed" else _IN_BAND)
                if behaviour.end == "error":
                    await response.write_eof()
                    return response
            await send(
                chunk if isinstance(chunk, bytes) else behaviour.frame(json.dumps(chunk, ensure_ascii=False).encode())
            )
        if behaviour.done:
            await send(behaviour.frame(b"[DONE]") + behaviour.behind_done)
        if behaviour.close is not None:
            await behaviour.close.wait()
        await response.write_eof(bytes(kept))
        return response

    async def _other(self, request: BaseRequest, seen: Seen) -> StreamResponse:
        if seen.path == "/v1/models" and seen.method == "GET":
            if self.list_hangs:
                await asyncio.sleep(3600)
            if self.list_fails:
                return web.Response(status=500, text="no list")
            entries = [{"id": name, "object": "model", "created": 1, "owned_by": "fake"} for name in self.models]
            return web.json_response({"object": "list", "data": entries})
        if seen.path == "/metrics":
            return web.Response(text="nproxy_engine_sequences 1\nother_metric 2\n")
        echo = {"method": seen.method, "target": seen.target, "body": seen.raw.decode("latin-1")}
        headers = {"x-from-upstream": "yes", "Set-Cookie": "tenant=a; Path=/", **self.behaviour.headers}
        return web.json_response(echo, headers=headers)


async def _verbatim(request: BaseRequest, behaviour: Behaviour) -> StreamResponse:
    """Answer with the scripted status and body."""
    body = behaviour.body if behaviour.body is not None else b'{"error": {"message": "scripted"}}'
    headers = {"Content-Type": behaviour.content_type or "application/json", **behaviour.headers}
    if behaviour.segment is None:
        return web.Response(status=behaviour.status, body=body, headers=headers)
    response = StreamResponse(status=behaviour.status, headers=headers)
    await response.prepare(request)
    await _in_segments(response, body, behaviour.segment)
    await response.write_eof()
    return response


async def _in_segments(response: StreamResponse, data: bytes, size: int | None) -> None:
    """Write in pieces of so many bytes, each of which is sent by itself."""
    step = size or max(1, len(data))
    for start in range(0, len(data), step):
        await response.write(data[start : start + step])
        if size:
            await asyncio.sleep(0)


_IN_BAND = b'data: {"error": {"message": "ran out of luck", "type": "server_error", "code": 500}}\n\n'


async def _whole(request: BaseRequest) -> bytes:
    parts = []
    while data := await request.content.readany():
        parts.append(data)
    return b"".join(parts)


def _is_uuid(given: str) -> bool:
    try:
        uuid.UUID(given)
    except ValueError:
        return not given
    return True


def _break(request: BaseRequest, *, reset: bool) -> None:
    transport = request.transport
    assert transport is not None
    if reset:
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    else:
        transport.close()


def _refusal(behaviour: Behaviour, body: Mapping[str, Any]) -> dict[str, Any] | None:
    if behaviour.n == "refuse" and body.get("n", 1) > 1:
        return {"message": "n must be 1", "type": "invalid_request_error", "param": "n", "code": None}
    for name in behaviour.refuse:
        if name in body:
            message = f"Unrecognized request argument supplied: {name}"
            return {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return None


async def at_once(asking: Coroutine[Any, Any, _T], *shared: tuple[FakeUpstream, int]) -> _T:
    """Run `asking`, and let no call end before each of these servers has had so many calls, including earlier ones.

    Calls begin one after the other. Without this, one that has ended would no longer count when the next is placed.
    """
    hold = asyncio.Event()
    for server, _ in shared:
        server.behaviour = replace(server.behaviour, hold=hold)
    asked = asyncio.create_task(asking)
    try:
        for server, calls in shared:
            await server.until(lambda server=server, calls=calls: len(server.calls) == calls)  # type: ignore[misc]
    finally:
        hold.set()
    return await asked


@asynccontextmanager
async def raw_server(handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[str]:
    """Serve raw connections with `handle`; they are closed when it returns. Yields the base URL.

    For answers that no HTTP library would send.
    """
    open_now: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now.add(task)
        try:
            await handle(reader, writer)
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass  # the other side is gone, or the test is over
        finally:
            writer.close()
            open_now.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        for task in open_now:
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)
        await server.wait_closed()
