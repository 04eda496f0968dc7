"""A scripted upstream: a real HTTP server on loopback that can misbehave at will and records what it saw.

    async with FakeUpstream(Behaviour(n="native")) as upstream:
        ...                                  # point the gateway at upstream.url
        assert len(upstream.calls) == 1

`upstream.behaviour` is how generation calls are answered; `upstream.script(b0, b1, ...)` takes precedence for the next
calls, one each; `upstream.choose = lambda call: Behaviour(...) or None` decides by what was sent. What it saw:
`calls` (POSTs to the two generation endpoints), `requests` (everything), `most_at_once`, `open_calls`. Await
`upstream.until(lambda: condition)` instead of sleeping: it is checked whenever something happens.

Answers are made from the seed: choice j of a call with seed s says `words(s + j)`, so equal seeds give equal texts.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from aiohttp import web
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

MODEL = "fake-model"


def words(seed: int) -> list[str]:
    """The pieces of text that a choice with this seed streams."""
    return [f"seed {seed}", " says", f" {seed * 7 % 101}", "."]


@dataclass
class Behaviour:
    """How one generation call is answered. The default: one choice whatever `n` says, with usage."""

    n: Literal["ignore", "native", "refuse"] = "ignore"
    width: int | None = None  # native: at most so many choices
    refuse: tuple[str, ...] = ()  # body fields answered with a 400 that names them
    pieces: Callable[[int], list[str]] = words
    finish: str | None = "stop"  # None: choices end without a finish_reason
    usage: bool = True
    role: bool = True  # streams begin with a role chunk
    done: bool = True
    hold: asyncio.Event | None = None  # wait for this before the head
    hold_after: int | None = None  # wait for `go_on` after so many chunks
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    pause: float = 0.0  # seconds before each chunk
    pings: int = 0  # comments before the first event, `ping_pause` apart
    ping_pause: float = 0.02
    end_after: int | None = None  # after so many chunks the answer ends as `end` says
    end: Literal["reset", "cut", "close", "malformed", "error"] = "cut"
    before_head: Literal["", "reset", "close"] = ""
    status: int = 200
    body: bytes | None = None  # sent as it is, with `content_type`
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    newline: bytes = b"\n"
    segment: int | None = None  # write streams in pieces of so many bytes
    json_for_stream: bool = False
    logprobs: bool = True  # give log probabilities where they are asked for


@dataclass
class Seen:
    """One request as it arrived, and how it ended. Times are the loop's."""

    method: str
    target: str
    headers: Mapping[str, str]
    raw: bytes
    opened: float
    closed: float | None = None
    cancelled: bool = False  # the other side closed the connection before the answer was complete

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class FakeUpstream:
    """See the module. `models`: the ids of its list, which `list_fails` answers with a 500. `unix`: listen there."""

    def __init__(
        self,
        behaviour: Behaviour | None = None,
        *,
        models: list[str] | None = None,
        list_fails: bool = False,
        unix: str | None = None,
    ) -> None:
        self.behaviour = behaviour or Behaviour()
        self.models = models or [MODEL]
        self.list_fails = list_fails
        self.unix = unix
        self.choose: Callable[[Seen], Behaviour | None] | None = None
        self.requests: list[Seen] = []
        self.most_at_once = 0
        self.connections = 0
        self._scripted: list[Behaviour] = []
        self._pulse = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._http: web.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """What a gateway is configured with."""
        return f"unix:{self.unix}" if self.unix else f"http://127.0.0.1:{self.port}/v1"

    @property
    def calls(self) -> list[Seen]:
        return [seen for seen in self.requests if seen.path in ("/v1/chat/completions", "/v1/completions")]

    @property
    def open_calls(self) -> list[Seen]:
        return [seen for seen in self.calls if seen.closed is None]

    def script(self, *behaviours: Behaviour) -> None:
        """Answer the next calls so, one each; then `choose` and `behaviour` hold again."""
        self._scripted.extend(behaviours)

    async def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        """Wait until the condition holds; fails with TimeoutError."""
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
            self._server = await loop.create_unix_server(connection, self.unix)
        else:
            self._server = await loop.create_server(connection, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Close the port and every connection; `async with` may start it again on the same port."""
        assert self._server is not None and self._http is not None
        self._server.close()
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
        if behaviour.hold is not None:
            await behaviour.hold.wait()
        if behaviour.before_head:
            _break(request, reset=behaviour.before_head == "reset")
            raise ConnectionResetError
        refused = _refusal(behaviour, seen.body)
        if refused is not None:
            return web.json_response({"error": refused}, status=400)
        if behaviour.body is not None or behaviour.status != 200:
            return web.Response(
                status=behaviour.status,
                body=behaviour.body if behaviour.body is not None else b'{"error": {"message": "scripted"}}',
                headers={"Content-Type": behaviour.content_type or "application/json", **behaviour.headers},
            )
        answer = _Answer(behaviour, seen)
        if answer.streamed and not behaviour.json_for_stream:
            return await self._stream(request, behaviour, answer)
        if behaviour.pause:
            await asyncio.sleep(behaviour.pause)
        return web.json_response(answer.whole(), headers=behaviour.headers)

    def _behaviour_for(self, seen: Seen) -> Behaviour:
        if self._scripted:
            return self._scripted.pop(0)
        return (self.choose(seen) if self.choose is not None else None) or self.behaviour

    async def _stream(self, request: BaseRequest, behaviour: Behaviour, answer: _Answer) -> StreamResponse:
        response = StreamResponse(
            headers={"Content-Type": behaviour.content_type or "text/event-stream", **behaviour.headers}
        )
        await response.prepare(request)

        async def send(data: bytes) -> None:
            data = data.replace(b"\n", behaviour.newline)
            step = behaviour.segment or max(1, len(data))
            for start in range(0, len(data), step):
                await response.write(data[start : start + step])
                if behaviour.segment:
                    await asyncio.sleep(0)

        for _ in range(behaviour.pings):
            await send(b": keep-alive\n\n")
            await asyncio.sleep(behaviour.ping_pause)
        for number, chunk in enumerate(answer.chunks()):
            if number == behaviour.hold_after:
                await behaviour.go_on.wait()
            if behaviour.pause:
                await asyncio.sleep(behaviour.pause)
            if number == behaviour.end_after:
                if behaviour.end == "close":
                    await response.write_eof()
                    return response
                if behaviour.end in ("reset", "cut"):
                    await asyncio.sleep(0.01)  # lets what was written leave first
                    _break(request, reset=behaviour.end == "reset")
                    raise ConnectionResetError
                await send(b'data: {"choices": [{"ind\n\n' if behaviour.end == "malformed" else _IN_BAND)
                if behaviour.end == "error":
                    await response.write_eof()
                    return response
            await send(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        if behaviour.done:
            await send(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _other(self, request: BaseRequest, seen: Seen) -> StreamResponse:
        if seen.path == "/v1/models" and seen.method == "GET":
            if self.list_fails:
                return web.Response(status=500, text="no list")
            entries = [{"id": name, "object": "model", "created": 1, "owned_by": "fake"} for name in self.models]
            return web.json_response({"object": "list", "data": entries})
        if seen.path == "/metrics":
            return web.Response(text="nproxy_engine_sequences 1\nother_metric 2\n")
        echo = {"method": seen.method, "target": seen.target, "body": seen.raw.decode("latin-1")}
        return web.json_response(echo, headers={"x-from-upstream": "yes", "Set-Cookie": "tenant=a; Path=/"})


_IN_BAND = b'data: {"error": {"message": "ran out of luck", "type": "server_error", "code": 500}}\n\n'


async def _whole(request: BaseRequest) -> bytes:
    parts = []
    while data := await request.content.readany():
        parts.append(data)
    return b"".join(parts)


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


class _Answer:
    """The answer to one call, whole or in chunks."""

    def __init__(self, behaviour: Behaviour, seen: Seen) -> None:
        body = seen.body
        self.behaviour = behaviour
        self.chat = seen.path.endswith("/chat/completions")
        self.streamed = bool(body.get("stream"))
        self.model = body.get("model", MODEL)
        self.seed = body.get("seed") or 0
        asked = body.get("n") or 1
        width = min(asked, behaviour.width or asked) if behaviour.n == "native" else 1
        prompt = body.get("prompt")
        prompts = len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1
        self.seeds = [self.seed + j for _ in range(prompts) for j in range(width)]
        self.want_usage = (body.get("stream_options") or {}).get("include_usage", False)
        self.logprobs = bool(body.get("logprobs")) and behaviour.logprobs
        self.top = {"id": f"fake-{id(seen):x}", "created": 1, "model": self.model, "system_fingerprint": "fp"}

    def usage(self) -> dict[str, int]:
        completion = sum(len(self.behaviour.pieces(seed)) for seed in self.seeds)
        return {"prompt_tokens": 5, "completion_tokens": completion, "total_tokens": 5 + completion}

    def whole(self) -> dict[str, Any]:
        choices = []
        for index, seed in enumerate(self.seeds):
            text = "".join(self.behaviour.pieces(seed))
            said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
            logprobs = self._logprobs(self.behaviour.pieces(seed))
            choices.append({"index": index, **said, "logprobs": logprobs, "finish_reason": self.behaviour.finish})
        kind = "chat.completion" if self.chat else "text_completion"
        answer = {**self.top, "object": kind, "choices": choices}
        return {**answer, "usage": self.usage()} if self.behaviour.usage else answer

    def chunks(self) -> list[dict[str, Any]]:
        chunks = []
        if self.chat and self.behaviour.role:
            for index in range(len(self.seeds)):
                chunks.append(self._chunk(index, {"role": "assistant", "content": ""}))
        pieces = [self.behaviour.pieces(seed) for seed in self.seeds]
        for at in range(max(map(len, pieces))):
            for index, texts in enumerate(pieces):
                if at < len(texts):
                    chunks.append(self._chunk(index, {"content": texts[at]}))
        if self.behaviour.finish is not None:
            for index in range(len(self.seeds)):
                chunks.append(self._chunk(index, {}, self.behaviour.finish))
        if self.behaviour.usage and self.want_usage:
            kind = "chat.completion.chunk" if self.chat else "text_completion"
            chunks.append({**self.top, "object": kind, "choices": [], "usage": self.usage()})
        return chunks

    def _chunk(self, index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": delta} if self.chat else {"text": delta.get("content", "")}
        logprobs = self._logprobs([delta["content"]]) if delta.get("content") else None
        choice = {"index": index, **said, "logprobs": logprobs, "finish_reason": finish}
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self.top, "object": kind, "choices": [choice]}

    def _logprobs(self, pieces: list[str]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        if self.chat:
            entry: dict[str, Any] = {"logprob": -0.5, "bytes": None, "top_logprobs": []}
            return {"content": [{"token": piece, **entry} for piece in pieces]}
        return {"tokens": pieces, "token_logprobs": [-0.5] * len(pieces), "top_logprobs": None, "text_offset": []}


@asynccontextmanager
async def raw_server(handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[str]:
    """Serve raw connections by `handle`, which are closed when it returns; yields the base URL.

    For what no HTTP library would send.
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
