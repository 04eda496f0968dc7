"""No more is read or written ahead than is taken, whichever side is slow, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator

import pytest
from multidict import CIMultiDict

from nproxy.concurrency.tasks import beside
from nproxy.upstreams.http.errors import UploadError
from nproxy.upstreams.http.message import Message
from nproxy.upstreams.http.reply import HIGH_WATER, Reply
from nproxy.upstreams.http.sending import Upload
from tests.fakes.upstream import raw_server
from tests.upstreams.http.asking import OK, Http, aiohttp_server, answering, head_of, rest
from tests.waiting import until


async def test_no_more_is_read_than_is_taken(http: Http) -> None:
    written = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 << 20))
        for _ in range(1024):
            writer.write(bytes(1 << 16))
            await writer.drain()
            written += 1 << 16
        await reader.read()

    async with raw_server(handle) as url:
        reply = await http.send(url)
        await reply.begun()
        before, still = -1, 0
        while still < 5:  # on a busy machine the server may not have had its turn
            before, still = written, still + 1 if written == before else 0
            await asyncio.sleep(0.1)
        assert written < 48 << 20, "the sockets' buffers, and no more"
        assert len(await reply.read()) <= HIGH_WATER + (256 << 10)
        got = 0
        while data := await reply.read():
            got += len(data)
        assert got > 60 << 20
        reply.close()
        assert len(http.connections.open) == 1, "which is there for the next call"
        handle_again = await http.send(url)
        assert handle_again.reused
        handle_again.close()


async def test_no_more_is_written_than_is_taken(http: Http) -> None:
    """The rest follows once the server reads on."""
    size, go = 64 << 20, asyncio.Event()

    async def reads_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        await go.wait()
        for _ in range(64):
            await reader.readexactly(1 << 20)
        writer.write(OK)

    async with raw_server(reads_late) as url:
        reply = await http.send(url, (bytes(size // 2), bytes(size // 2)))
        (connection,) = http.connections.open
        assert connection.transport is not None
        await asyncio.sleep(0.1)
        assert connection.transport.get_write_buffer_size() < 1 << 20
        go.set()
        await reply.begun()
        assert await rest(reply) == b"ok"


async def test_an_answer_before_the_body_is_sent(http: Http) -> None:
    """What is left of the body is not sent, nor is the connection used again."""

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await asyncio.Event().wait()

    async with raw_server(refuses) as url:
        reply = await http.send(url, (bytes(64 << 20),))
        await reply.begun()
        assert (reply.head.status, await rest(reply)) == (413, b"no")
        again = await http.send(url)
        assert not again.reused
        again.close()


@pytest.mark.parametrize("size", [9, None])
async def test_an_answer_before_an_upload_is_over(http: Http, size: int | None) -> None:
    """What would be sent next would be taken for the rest of it."""
    handle, counts = answering(OK)
    over = asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        yield b"half"
        await over.wait()

    async with raw_server(handle) as url:
        upload = Upload(source(), size)
        headers = CIMultiDict[str]() if size is None else CIMultiDict({"Content-Length": str(size)})
        async with beside(upload.run()):
            reply = await http.send(url, upload, headers=headers)
            await reply.begun()
            assert await rest(reply) == b"ok"
            assert await http.ask(url) == b"ok"
            over.set()
        assert counts == [1, 1]


async def test_an_answer_while_the_body_comes(http: Http) -> None:
    """Both go on side by side, as over a telephone."""
    more = asyncio.Queue[bytes]()

    async def said() -> AsyncIterator[bytes]:
        while data := await more.get():
            yield data

    async with aiohttp_server() as url:
        upload = Upload(said(), None)
        async with beside(upload.run()):
            reply = await http.send(url, upload)
            for word in (b"one", b"two"):
                more.put_nowait(word)
                await reply.begun()
                assert await reply.read() == word
            more.put_nowait(b"")
            assert await rest(reply) == b""
        assert len(http.connections.open) == 1


async def test_no_more_of_an_upload_is_asked_for_than_is_taken(http: Http) -> None:
    asked = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def source() -> AsyncIterator[bytes]:
        nonlocal asked
        for _ in range(64):
            asked += 1
            yield bytes(1 << 20)

    async with raw_server(silent) as url:
        upload = Upload(source(), None)
        async with beside(upload.run()):
            reply = await http.send(url, upload)
            await asyncio.sleep(0.2)
            assert 0 < asked < 32
            reply.close()


@pytest.mark.parametrize(("said", "data"), [(5, [b"abc"]), (2, [b"abc"]), (None, [b"abc", b"!"])])
async def test_an_upload_that_breaks_off_or_is_too_long(http: Http, said: int | None, data: list[bytes]) -> None:
    """Too short, too long, or an error where it comes from: the call is over, and no server takes it for whole."""
    got = asyncio.get_running_loop().create_future()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        whole = b""
        with contextlib.suppress(ConnectionError):
            whole = await reader.read()
        got.set_result(whole.partition(b"\r\n\r\n")[2])

    async def source() -> AsyncIterator[bytes]:
        for piece in data:
            if piece == b"!":
                raise RuntimeError
            yield piece

    async with raw_server(handle) as url:
        upload = Upload(source(), said)
        headers = CIMultiDict[str]() if said is None else CIMultiDict({"Content-Length": str(said)})
        async with beside(upload.run()):
            reply = await http.send(url, upload, headers=headers)
            with pytest.raises(UploadError):
                await reply.begun()
            reply.close()
        assert (await got) in (b"", b"" if said == 2 else b"abc", b"3\r\nabc\r\n")


@pytest.mark.parametrize("whole", [True, False])
async def test_nothing_is_left_for_the_collector(http: Http, whole: bool) -> None:
    """A call that is over is freed at once: at thousands a second a collector would have much to look through."""
    handle, _ = answering(OK if whole else b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok")
    async with raw_server(handle) as url:
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                reply = await http.send(url)
                await reply.begun()
                assert await reply.read() == b"ok"
                reply.close()
                del reply
                await until(lambda: whole or not http.connections.open)
            assert not [one for one in gc.get_objects() if type(one) in (Reply, Message)]
        finally:
            gc.enable()
