"""Answers as they are written, beside those of aiohttp's own responses for the same requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import product

import pytest
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from multidict import CIMultiDict

from nproxy.gateway.response_writer import ClientLeft, ResponseWriter
from nproxy.gateway.server import HttpServer

Answer = Callable[[BaseRequest, int, int | None, bool], StreamResponse]

PIECES = (b"he", b"", b"llo")
OF_A_CONNECTION = ("", "Connection: close\r\n", "Connection: keep-alive\r\n")
HEADERS = [("Server", "x"), ("X-Twice", "1"), ("x-twice", "é")]


def theirs(request: BaseRequest, status: int, length: int | None, closes: bool) -> StreamResponse:
    response = StreamResponse(status=status, headers=CIMultiDict(HEADERS))
    response.content_length = length
    if closes:
        response.force_close()
    return response


def ours(request: BaseRequest, status: int, length: int | None, closes: bool) -> StreamResponse:
    return ResponseWriter(request, status, HEADERS, length=length, closes=closes)


@asynccontextmanager
async def serving(handle: Callable[[BaseRequest], object]) -> AsyncIterator[int]:
    server = HttpServer(handle)  # type: ignore[arg-type]
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await server.shutdown(0)


MORE = b"GET /more HTTP/1.1\r\nHost: x\r\n\r\n"
"""Comes behind each request, and is answered where the connection stays."""


async def told(port: int, request: bytes) -> tuple[str, list[str], bytes, bool]:
    """The status line, the header lines, the body as it was framed, and whether the connection stays."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request + MORE)
        async with asyncio.timeout(5):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            rest = bytearray()
            while not rest.endswith(b"and more") and (more := await reader.read(65536)):
                rest += more
    finally:
        writer.close()
    line, *fields = head.strip().split("\r\n")
    body, _, stays = rest.partition(b"HTTP/1.1 200")
    return line, sorted(re.sub("(?i)^date: .*", "date", field).lower() for field in fields), bytes(body), bool(stays)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_heads_bodies_and_connections_are_those_of_aiohttp(method: str, version: str) -> None:
    now: list[tuple[Answer, int, int | None, bool]] = []

    async def handle(request: BaseRequest) -> StreamResponse:
        if request.raw_path == "/more":
            more = ResponseWriter(request, 200, (), length=8, closes=False)
            await more.finish(b"and more")
            return more
        answer, status, length, closes = now[0]
        response = answer(request, status, length, closes)
        await response.prepare(request)
        if response.status == 200 and length != 0 and method != "HEAD":
            for piece in PIECES:
                await response.write(piece)
        await (response.finish(b"") if isinstance(response, ResponseWriter) else response.write_eof())
        return response

    async with serving(handle) as port:
        for status, length, closes, connection in product(
            (200, 204, 304), (None, 0, 5), (False, True), OF_A_CONNECTION
        ):
            request = f"{method} / HTTP/{version}\r\nHost: x\r\nContent-Length: 0\r\n{connection}\r\n".encode()
            found: list[tuple[object, ...]] = []
            for answer in (theirs, ours):
                now[:] = [(answer, status, length, closes)]
                found.append(await told(port, request))
            until_the_end = version == "1.0" and status == 200 and length is None and method != "HEAD"
            if until_the_end:  # where aiohttp's stays, and its client waits for ever
                assert found[1][-1] is False
                found = [one[:3] for one in found]
            assert found[0] == found[1], (status, length, closes, connection)


async def test_pieces_are_framed_and_leave_with_the_head() -> None:
    async def handle(request: BaseRequest) -> StreamResponse:
        response = ResponseWriter(request, 200, HEADERS, length=None, closes=True)
        assert response.write_now(b"a" * 26)
        await response.write(memoryview(b"bc"))
        await response.finish(b"d")
        return response

    async with serving(handle) as port:
        _, _, body, _ = await told(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert body == b"1a\r\n" + b"a" * 26 + b"\r\n2\r\nbc\r\n1\r\nd\r\n0\r\n\r\n"


@pytest.mark.parametrize("value", ["a\r\nSet-Cookie: b", "a\nb", "a\rb", "a\0b"])
async def test_a_header_ends_no_line_but_its_own(value: str) -> None:
    caught: list[str] = []

    async def handle(request: BaseRequest) -> StreamResponse:
        with pytest.raises(ValueError, match="would end its line") as error:
            ResponseWriter(request, 200, [("x", value)], length=0, closes=False)
        caught.append(str(error.value))
        response = ResponseWriter(request, 500, (), length=0, closes=True)
        await response.finish(b"")
        return response

    async with serving(handle) as port:
        line, *_ = await told(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert line == "HTTP/1.1 500 Internal Server Error" and len(caught) == 1


async def test_what_was_no_utf_8_leaves_as_it_came() -> None:
    async def handle(request: BaseRequest) -> StreamResponse:
        response = ResponseWriter(
            request, 200, [("x", b"\xe9t\xe9".decode("utf-8", "surrogateescape"))], length=0, closes=True
        )
        await response.finish(b"")
        return response

    async with serving(handle) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"x: \xe9t\xe9\r\n" in await asyncio.wait_for(reader.read(), 5)
        writer.close()


async def test_an_answer_that_is_not_whole_ends_its_connection() -> None:
    async def handle(request: BaseRequest) -> StreamResponse:
        response = ResponseWriter(request, 200, (), length=5, closes=False)
        await response.write(b"he")
        return response

    async with serving(handle) as port:
        _, _, body, stays = await told(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (body, stays) == (b"he", False)


async def test_who_is_slow_is_waited_for_and_who_is_gone_is_known() -> None:
    said: list[object] = []
    slow, writes = asyncio.Event(), set[asyncio.Task[None]]()

    async def write(response: ResponseWriter) -> None:
        while response.write_now(b"x" * 65536):
            pass
        slow.set()
        try:
            await response.write(b"y")
        except ClientLeft:
            said.append("gone while it waited")
        said.append(response.write_now(b"z"))
        with pytest.raises(ClientLeft):
            await response.finish(b"z")

    async def handle(request: BaseRequest) -> StreamResponse:
        response = ResponseWriter(request, 200, (), length=None, closes=False)
        writes.add(asyncio.create_task(write(response)))  # the handler itself is cancelled with its client
        await asyncio.wait(writes)
        return response

    async with serving(handle) as port, asyncio.timeout(5):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await slow.wait()
        assert not said
        writer.transport.abort()
        await asyncio.gather(*writes)
    assert said == ["gone while it waited", False]
