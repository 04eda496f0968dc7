"""Answers handed over where they are read: in order, no faster than they are taken, to their end or their fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from nproxy.upstreams.http.connections import Connections
from nproxy.upstreams.http.errors import CutError, LostError, MalformedError
from nproxy.upstreams.http.reply import HIGH_WATER, Pour, Reply
from nproxy.upstreams.via import Pseudonym
from tests.fakes.upstream import raw_server
from tests.upstreams.conftest import replica_at
from tests.upstreams.http.asking import sent

Write = Callable[[bytes], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


@asynccontextmanager
async def answered(script: Callable[[Write], Awaitable[None]]) -> AsyncIterator[tuple[Reply, Connections]]:
    """The answer that a script writes; its connection is closed when the script is over."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        await script(write)

    connections = Connections(Pseudonym("nproxy-1"))
    async with raw_server(handle) as url:
        to = replica_at(url)
        reply = await sent(connections, to)
        await reply.begun()
        yield reply, connections
        reply.close()
        await connections.close()
        assert not connections.open


async def poured(reply: Reply, into: Pour) -> None:
    async with asyncio.timeout(5):
        await reply.pour(into)


async def test_segments_come_as_they_are_read() -> None:
    go_on = asyncio.Event()
    got: list[bytes] = []

    async def script(write: Write) -> None:
        await write(HEAD % 6 + b"ab")
        for word in (b"cd", b"ef"):
            await go_on.wait()
            go_on.clear()
            await write(word)
        await go_on.wait()

    def into(data: bytes) -> None:
        got.append(data)
        ends.append(reply.at_end)
        go_on.set()

    ends: list[bool] = []
    async with answered(script) as (reply, connections):
        await poured(reply, into)
        assert (got, ends) == ([b"ab", b"cd", b"ef"], [False, False, True])
        go_on.set()
        assert len(connections.open) == 1, "which may be used again"


async def test_what_comes_while_there_is_no_room_comes_together() -> None:
    rooms: list[asyncio.Future[None]] = []
    got: list[bytes] = []
    written = asyncio.Event()

    async def script(write: Write) -> None:
        await write(HEAD % 6 + b"ab")
        while not rooms:
            await asyncio.sleep(0.01)
        await write(b"cd")
        await asyncio.sleep(0.05)
        await write(b"ef")
        written.set()

    def into(data: bytes) -> asyncio.Future[None]:
        got.append(data)
        rooms.append(asyncio.get_running_loop().create_future())
        return rooms[-1]

    async with answered(script) as (reply, _):
        pouring = asyncio.create_task(poured(reply, into))
        await written.wait()
        await asyncio.sleep(0.05)
        assert got == [b"ab"]
        rooms[0].set_result(None)
        await asyncio.sleep(0.05)
        assert got == [b"ab", b"cdef"] and not pouring.done(), "not over before its last part was taken"
        rooms[1].set_result(None)
        await pouring


async def test_no_more_is_read_than_there_is_room_for() -> None:
    written = got = 0
    room: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def script(write: Write) -> None:
        nonlocal written
        await write(HEAD % (64 << 20))
        for _ in range(1024):
            await write(bytes(1 << 16))
            written += 1 << 16

    def into(data: bytes) -> asyncio.Future[None] | None:
        nonlocal got
        got += len(data)
        return None if room.done() else room

    async with answered(script) as (reply, _):
        pouring = asyncio.create_task(poured(reply, into))
        before = -1
        while written != before:
            before = written
            await asyncio.sleep(0.1)
        assert written < 48 << 20, "the sockets' buffers, and no more"
        assert got <= HIGH_WATER + (256 << 10)
        room.set_result(None)
        await pouring
        assert got == 64 << 20


@pytest.mark.parametrize("waits", [False, True])
async def test_what_has_come_is_handed_over_before_it_breaks_off(*, waits: bool) -> None:
    got: list[bytes] = []
    rooms: list[asyncio.Future[None]] = []

    async def script(write: Write) -> None:
        await write(HEAD % 9 + b"ab")
        await asyncio.sleep(0.05)
        await write(b"cd")

    def into(data: bytes) -> asyncio.Future[None] | None:
        got.append(data)
        if not waits:
            return None
        rooms.append(asyncio.get_running_loop().create_future())
        asyncio.get_running_loop().call_later(0.2, rooms[-1].set_result, None)
        return rooms[-1]

    async with answered(script) as (reply, _):
        with pytest.raises(CutError):
            await poured(reply, into)
        assert got == [b"ab", b"cd"] and all(room.done() for room in rooms)


async def test_a_fault_of_who_takes_it_is_theirs() -> None:
    ended = asyncio.Event()

    async def script(write: Write) -> None:
        await write(HEAD % 9 + b"ab")
        await asyncio.sleep(0.05)
        await write(b"cd")
        await ended.wait()

    def into(data: bytes) -> None:
        if data == b"cd":
            raise ZeroDivisionError

    async with answered(script) as (reply, connections):
        with pytest.raises(ZeroDivisionError):
            await poured(reply, into)
        await asyncio.sleep(0)
        assert not connections.open, "closed at once"
        ended.set()


async def test_closed_meanwhile() -> None:
    ended = asyncio.Event()

    async def script(write: Write) -> None:
        await write(HEAD % 9 + b"ab")
        await ended.wait()

    async with answered(script) as (reply, _):
        pouring = asyncio.create_task(poured(reply, lambda _: None))
        await asyncio.sleep(0.05)
        reply.close()
        with pytest.raises(LostError):
            await pouring
        ended.set()


async def test_what_came_before_a_fault_in_the_same_segment() -> None:
    async def script(write: Write) -> None:
        await write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(0.05)
        await write(b"2\r\nab\r\nno size\r\n")

    got: list[bytes] = []
    async with answered(script) as (reply, _):
        with pytest.raises(MalformedError):
            await poured(reply, got.append)
    assert got == [b"ab"]


async def test_closed_before_what_is_whole_was_read() -> None:
    async def script(write: Write) -> None:
        await write(HEAD % 4 + b"ab")
        await asyncio.sleep(0.05)
        await write(b"cd")

    async with answered(script) as (reply, _):
        assert await reply.read() == b"ab"
        await asyncio.sleep(0.2)
        reply.close()
        with pytest.raises(LostError):
            await reply.read()


async def test_closed_before_what_is_whole_was_taken() -> None:
    async def script(write: Write) -> None:
        await write(HEAD % 4 + b"ab")
        await asyncio.sleep(0.05)
        await write(b"cd")

    room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with answered(script) as (reply, _):
        pouring = asyncio.create_task(poured(reply, lambda _: room))
        await asyncio.sleep(0.2)
        reply.close()
        room.set_result(None)
        with pytest.raises(LostError):
            await pouring
