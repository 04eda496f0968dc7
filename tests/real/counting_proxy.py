"""A reverse proxy that stands before a real server and counts what reaches it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

_PASSED = frozenset({"content-type", "authorization", "x-request-id"})


@dataclass(slots=True)
class Counts:
    """What the proxy saw of the POST calls so far.

    url: the proxy's own address. calls: the JSON bodies, in order of arrival. inflight, most: calls at the server now,
    and at the most at once. left: calls that the caller closed before their answer was complete.
    Written by the proxy's thread, read by the test's.
    """

    url: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    inflight: int = 0
    most: int = 0
    left: int = 0


@contextmanager
def counting_proxy(target: str) -> Iterator[Counts]:
    """Relay everything to `target` (an address without a path) and count the POST calls, in a thread of its own.

    A call counts as over once the server's answer has been read to its end, before the caller sees that end: a caller
    that waits for the end of one call before it sends the next is never seen with two.
    """
    counts = Counts()
    ready = threading.Event()
    stop = asyncio.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        async with _running(target, counts):
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        if not ready.wait(10.0):
            raise RuntimeError("the proxy did not start")
        yield counts
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@asynccontextmanager
async def _running(target: str, counts: Counts) -> AsyncIterator[None]:
    timeout = aiohttp.ClientTimeout(total=None)
    fresh = aiohttp.TCPConnector(force_close=True)  # a kept connection may be closed by the server just as it is used
    async with aiohttp.ClientSession(target, timeout=timeout, connector=fresh, auto_decompress=False) as session:

        async def relay(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            headers = {
                k: v
                for k, v in request.headers.items()
                if k.lower() in ("content-type", "authorization", "x-request-id")
            }
            async with session.request(request.method, request.path_qs, data=body, headers=headers) as answer:
                kept = {k: v for k, v in answer.headers.items() if k.lower() == "content-type"}
                if answer.content_type != "text/event-stream":
                    return web.Response(status=answer.status, body=await answer.read(), headers=kept)
                stream = web.StreamResponse(status=answer.status, headers=kept)
                await stream.prepare(request)
                async for piece in answer.content.iter_any():
                    await stream.write(piece)
                return stream

        async def count(request: web.Request) -> web.StreamResponse:
            if request.method != "POST":
                return await relay(request)
            counts.calls.append(json.loads(await request.read()))
            counts.inflight += 1
            counts.most = max(counts.most, counts.inflight)
            try:
                return await relay(request)
            except (asyncio.CancelledError, ConnectionError):
                counts.left += 1
                raise
            finally:
                counts.inflight -= 1

        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", count)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            counts.url = f"http://{host}:{port}"
            yield
        finally:
            await runner.cleanup()
