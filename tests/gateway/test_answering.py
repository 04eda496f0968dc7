"""What is told of an answer whose client leaves: before its end, and after it while calls to upstreams still end.

And when a client that stays, but reads nothing, is cut off.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from aiohttp.web_runner import ServerRunner, TCPSite
from aiohttp.web_server import Server

from nproxy.gateway.answering import SLOW_READER, WriteGuard, answer
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.record import CLIENT_LEFT, Record
from tests import virtual_time

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


class Stuck:
    """An exchange and its connection, whose client has left a part of what was written unread."""

    def __init__(self) -> None:
        self.cut: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.request = SimpleNamespace(transport=self, writer=SimpleNamespace(output_size=1000))
        self.record = Record(0.0)
        self.unread = 900

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.cut.set_result(asyncio.get_running_loop().time())


@pytest.mark.parametrize("reads_after", [[], [50.0], [50.0, 50.0, 50.0]])
def test_who_reads_nothing_for_so_long_is_cut_off_and_nobody_else(reads_after: list[float]) -> None:
    async def stay() -> float:
        guard, client = WriteGuard(60.0), Stuck()
        exchange: Any = client
        guard.watch(exchange)
        for seconds in reads_after:
            await asyncio.sleep(seconds)
            client.unread -= 1
        since = asyncio.get_running_loop().time()
        after = await client.cut - since
        assert client.record.cut == SLOW_READER
        return after

    assert 60 <= virtual_time.run(stay()) <= 90, "it looks four times in that time"
