"""Asks servers over real sockets, and servers that answer with given bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from multidict import CIMultiDict

from nproxy.upstreams.http.connections import Connections
from nproxy.upstreams.http.head import Fields, request_head
from nproxy.upstreams.http.reply import Reply
from nproxy.upstreams.http.sending import Upload
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.via import Pseudonym
from tests.upstreams.conftest import replica_at

Streams = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Http:
    """Sends requests to one server at a time and gathers answers."""

    def __init__(self) -> None:
        self.connections = Connections(Pseudonym("nproxy-1"))

    async def send(
        self,
        replica: Replica | str,
        body: Sequence[bytes] | Upload = (),
        method: str = "POST",
        headers: CIMultiDict[str] | None = None,
        seconds: float | None = 5.0,
    ) -> Reply:
        to = replica_at(replica) if isinstance(replica, str) else replica
        return await sent(self.connections, to, body, method, headers, seconds)

    async def ask(self, replica: Replica | str, body: Sequence[bytes] | Upload = (), method: str = "POST") -> bytes:
        reply = await self.send(replica, body, method)
        await reply.begun()
        return await rest(reply)


async def sent(
    connections: Connections,
    to: Replica,
    body: Sequence[bytes] | Upload = (),
    method: str = "POST",
    headers: CIMultiDict[str] | None = None,
    seconds: float | None = 5.0,
) -> Reply:
    """Send a request, on an idle connection or on a new one."""
    url, fields = to.url("/x"), Fields.of(headers or CIMultiDict())
    size = body.size if isinstance(body, Upload) else sum(map(len, body))
    head = request_head(method, url, fields, size, via=connections.via, host=to.authority)
    connection = connections.take(to) or await connections.connect(to, url, seconds)
    return connection.send(method, head, body)


async def rest(reply: Reply) -> bytes:
    """What is left of the body; the reply is closed."""
    got = b""
    try:
        while data := await reply.read():
            got += data
    finally:
        reply.close()
    return got


async def head_of(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def answering(answer: bytes, *, once: bool = False) -> tuple[Streams, list[int]]:
    """A handler that gives the same bytes to every request, and the requests of each connection."""
    counts: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counts.append(0)
        number = len(counts) - 1
        while True:
            await head_of(reader)
            counts[number] += 1
            writer.write(answer)
            await writer.drain()
            if once:
                return

    return handle, counts


@asynccontextmanager
async def aiohttp_server() -> AsyncIterator[str]:
    async def echo(request: web.Request) -> web.StreamResponse:
        if request.method == "HEAD":
            return web.Response(headers={"Content-Length": "5"})
        answer = web.StreamResponse()
        if request.content_length is not None:
            answer.content_length = request.content_length
        await answer.prepare(request)
        async for data in request.content.iter_any():
            await answer.write(data)
        return answer

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        await asyncio.sleep(0)
        yield piece
