"""A relay without features, with aiohttp on both sides: the cost of nproxy's libraries alone.

python -m bench.gateway.bare PORT UPSTREAM
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import aiohttp
import uvloop
from aiohttp import web

UPSTREAM = web.AppKey("UPSTREAM", str)
SESSION = web.AppKey("SESSION", aiohttp.ClientSession)


async def relay(request: web.Request) -> web.StreamResponse:
    """Forward the body, and the answer as it arrives."""
    session, url = request.app[SESSION], request.app[UPSTREAM] + request.path
    kind = {"Content-Type": request.content_type}
    async with session.request(request.method, url, data=await request.read(), headers=kind) as answer:
        if answer.content_type != "text/event-stream":
            return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for some in answer.content.iter_any():
            await response.write(some)
        await response.write_eof()
        return response


async def _session(app: web.Application) -> AsyncIterator[None]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        app[SESSION] = session
        yield


def main(port: int, upstream: int) -> None:
    app = web.Application()
    app[UPSTREAM] = f"http://127.0.0.1:{upstream}"
    app.cleanup_ctx.append(_session)
    app.router.add_route("*", "/{path:.*}", relay)
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, loop=uvloop.new_event_loop())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
