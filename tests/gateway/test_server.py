"""The HTTP server by itself: handlers that fail, and connections that do not go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from nproxy.gateway.server import Handler, HttpServer, _heads_apart
from tests.gateway.raw import apart

ASK = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


@asynccontextmanager
async def serving(handler: Handler, **settings: Any) -> AsyncIterator[tuple[HttpServer, str, int]]:
    """Serve by this handler while the block runs; gives the server, and its address."""
    http = HttpServer(handler, **settings)
    async with await asyncio.get_running_loop().create_server(http, "127.0.0.1", 0) as listening:
        try:
            yield http, *listening.sockets[0].getsockname()
        finally:
            await http.shutdown(0.1)


async def answer(host: str, port: int) -> bytes:
    """What comes until the connection is closed, however."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(ASK)
    got = b""
    async with asyncio.timeout(10):
        try:
            while part := await reader.read(1 << 16):
                got += part
        except ConnectionError:
            pass
    writer.close()
    return got


@pytest.mark.parametrize(("heads", "parts"), [(1, 1), (2, 2), (64, 64), (65, 1)])
def test_only_so_many_heads_are_parted(heads: int, parts: int) -> None:
    parted = _heads_apart(ASK * heads)
    assert (len(parted), b"".join(parted)) == (parts, ASK * heads)


async def test_a_fault_of_our_own_is_told_of_in_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(request: BaseRequest) -> StreamResponse:
        raise RuntimeError("the reason")

    async with serving(fail) as (_, host, port):
        status, headers, content = apart(await answer(host, port))
    assert (status, headers["server"], headers["connection"]) == (500, "nproxy", "close")
    assert json.loads(content)["error"]["type"] == "server_error"
    assert b"the reason" not in content
    (record,) = [record for record in caplog.records if record.name == "nproxy.gateway"]
    assert record.exc_info is not None and "the reason" in str(record.exc_info[1])
    assert vars(record)["fields"] == {"request_id": headers["x-request-id"]}


async def test_an_answer_that_was_begun_is_not_followed_by_an_error() -> None:
    async def fail(request: BaseRequest) -> StreamResponse:
        response = StreamResponse()
        await response.prepare(request)
        await response.write(b"begun")
        raise RuntimeError

    async with serving(fail) as (_, host, port):
        got = await answer(host, port)
    assert got.count(b"HTTP/1.1") == 1 and b"begun" in got
    assert not got.endswith(b"0\r\n\r\n"), "and it is not passed off as whole"


async def test_what_is_closing_and_is_not_read_is_broken_off() -> None:
    async def leave(request: BaseRequest) -> StreamResponse:
        assert request.transport is not None
        request.transport.write(b"x" * 30_000_000)
        request.transport.close()
        raise ConnectionResetError

    async with serving(leave, linger_seconds=0.2) as (http, host, port):
        _, writer = await asyncio.open_connection(host, port)
        writer.write(ASK)
        async with asyncio.timeout(10):
            while not http._transports:
                await asyncio.sleep(0.01)
            await http.vacant()
        writer.close()
    assert http._sweep_timer.cancelled()
