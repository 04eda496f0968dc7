"""What is told of an answer whose client leaves: before its end, and after it while calls to upstreams still end."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from aiohttp.web_runner import ServerRunner, TCPSite
from aiohttp.web_server import Server

from nproxy.gateway.answering import WriteGuard, answer
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.record import CLIENT_LEFT, Record

BODY = b'{"error": {}}'


@pytest.mark.parametrize(("whole", "code"), [(True, 400), (False, CLIENT_LEFT)])
async def test_only_who_leaves_before_the_end_has_left(whole: bool, code: int) -> None:
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def serve(exchange: Exchange) -> None:
        if whole:
            await exchange.respond(400, BODY)
        else:
            exchange.begin(400, {}, length=2 * len(BODY))
            await exchange.write(BODY)
        await asyncio.Event().wait()  # what a request has opened is still closing

    async def handle(request: BaseRequest) -> StreamResponse:
        exchange = Exchange(request, "an-id", Record(0.0))
        try:
            return await answer(exchange, serve, WriteGuard(60.0))
        finally:
            told.set_result(exchange.record.code)

    runner = ServerRunner(Server(handle, handler_cancellation=True))
    await runner.setup()
    try:
        site = TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", runner.addresses[0][1])
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await reader.readuntil(BODY)
        writer.close()
        assert await asyncio.wait_for(told, 10) == code
    finally:
        await runner.cleanup()
