"""Connections over real sockets: when one is used again, when not, and how much is read or written ahead."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from multidict import CIMultiDict

from nproxy.upstreams.failures import before_the_head
from nproxy.upstreams.http import connecting, connections
from nproxy.upstreams.http.connection import HIGH_WATER, Reply
from nproxy.upstreams.http.connections import Connections, most_calls
from nproxy.upstreams.http.errors import ConnectError, ConnectTimeoutError, CutError, DisconnectedError, LostError
from nproxy.upstreams.http.head import Fields
from nproxy.upstreams.http.message import Message
from nproxy.upstreams.http.sending import SLICE_BYTES, Upload
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.tasks import beside
from nproxy.upstreams.via import Pseudonym
from tests.fakes.unreachable import says_nothing
from tests.fakes.upstream import raw_server
from tests.upstreams.conftest import replica_at
from tests.waiting import until

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
        return await self.connections.send(to, method, to.url("/x"), Fields.of(headers or CIMultiDict()), body, seconds)

    async def ask(self, replica: Replica | str, body: Sequence[bytes] | Upload = (), method: str = "POST") -> bytes:
        reply = await self.send(replica, body, method)
        await reply.begun()
        return await rest(reply)


async def rest(reply: Reply) -> bytes:
    """What is left of the body; the reply is closed."""
    got = b""
    try:
        while data := await reply.read():
            got += data
    finally:
        reply.close()
    return got


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    http = Http()
    yield http
    await http.connections.close()
    assert not http.connections.open


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


# A real server


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


@pytest.mark.parametrize("size", [0, 1, SLICE_BYTES, SLICE_BYTES + 1, 3_000_000])
async def test_bodies_both_ways(http: Http, size: int) -> None:
    """As much comes back as went, as it went, on one connection: parts, with a length, and in chunks."""
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with aiohttp_server() as url:
        assert await http.ask(url, (data[: size // 3], data[size // 3 :])) == data
        upload = Upload(pieces(data[: size // 2], b"", data[size // 2 :]), None)
        async with beside(upload.run()):
            assert await http.ask(url, upload) == data
        upload = Upload(pieces(data[: size // 2], data[size // 2 :]), size)
        async with beside(upload.run()):
            reply = await http.send(url, upload, headers=CIMultiDict({"Content-Length": str(size)}))
            await reply.begun()
            assert await rest(reply) == data
        assert await http.ask(url, method="HEAD") == b""
        assert await http.ask(url, (b"after",)) == b"after"
        assert len(http.connections.open) == 1


# Used again, or not


@pytest.mark.parametrize(
    "answer",
    [
        OK,
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: 1\r\n\r\n",
    ],
)
async def test_a_connection_is_used_again(http: Http, answer: bytes) -> None:
    handle, counts = answering(answer)
    async with raw_server(handle) as url:
        first = await http.send(url)
        await first.begun()
        await rest(first)
        second = await http.send(url)
        await second.begun()
        assert (first.reused, second.reused) == (False, True)
        await rest(second)
        assert counts == [2]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"more than was asked for",
    ],
)
async def test_a_connection_is_not_used_again(http: Http, answer: bytes) -> None:
    handle, counts = answering(answer)
    async with raw_server(handle) as url:
        await http.ask(url)
        await http.ask(url)
        assert counts == [1, 1]


@pytest.mark.parametrize("unasked", [b"", b"HTTP/1.1 408 Request Timeout\r\n\r\n"])
async def test_a_connection_that_ended_while_it_was_idle(
    http: Http, unasked: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "KEEPALIVE_SECONDS", 600.0)
    go, gone = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(OK)
        await go.wait()
        if unasked:
            writer.write(unasked)
            assert await reader.read() == b"", "closed by the other side"
        gone.set()

    async with raw_server(handle) as url:
        await http.ask(url)
        assert len(http.connections.open) == 1
        go.set()
        async with asyncio.timeout(5):
            await gone.wait()
        await until(lambda: not http.connections.open)
        reply = await http.send(url)
        assert not reply.reused
        await reply.begun()
        reply.close()


@pytest.mark.parametrize("behind", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"])
@pytest.mark.parametrize("unix", [False, True])
async def test_what_came_of_it_that_the_loop_has_not_seen_yet(
    http: Http, socket_path: Path, behind: bytes, unix: bool
) -> None:
    """A loop that is busy reads its sockets late: one that has ended, or answers unasked, carries no call."""
    go, gone = threading.Event(), threading.Event()

    def serves() -> None:
        first, _ = server.accept()
        with first:
            first.recv(1 << 16)
            first.sendall(OK)
            go.wait(10)
            first.sendall(behind)
            if not behind:
                first.shutdown(socket.SHUT_WR)
            gone.set()
            second, _ = server.accept()
            with second:
                second.recv(1 << 16)
                second.sendall(OK)

    family = socket.AF_UNIX if unix else socket.AF_INET
    with socket.socket(family) as server:
        server.bind(str(socket_path) if unix else ("127.0.0.1", 0))
        server.listen()
        url = f"unix:{socket_path}" if unix else f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        thread = threading.Thread(target=serves)
        thread.start()
        assert await http.ask(url) == b"ok"
        go.set()
        assert gone.wait(10), "the loop stands still meanwhile"
        reply = await http.send(url)
        await reply.begun()
        assert (reply.reused, await rest(reply)) == (False, b"ok")
        await asyncio.to_thread(thread.join)


async def test_idle_connections_are_closed_after_a_while(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEEPALIVE_SECONDS", 0.05)
    handle, counts = answering(OK)
    async with raw_server(handle) as url:
        await http.ask(url)
        await until(lambda: not http.connections.open)
        await http.ask(url)
        assert counts == [1, 1]
        await until(lambda: not http.connections.open)
    assert not http.connections._idle
    assert http.connections._sweeping is None, "nothing is left to look at"


async def test_an_idle_connection_that_is_too_old_is_not_used(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    handle, counts = answering(OK)
    async with raw_server(handle) as url:
        await http.ask(url)
        (old,) = http.connections.open
        monkeypatch.setattr(connections, "KEEPALIVE_SECONDS", 0.0)
        await http.ask(url)
        assert counts == [1, 1]
        await until(lambda: old not in http.connections.open)


async def test_the_connection_used_last_is_used_next(http: Http) -> None:
    """So that what a burst needed beside it is left alone, and closed."""
    counts: list[int] = []
    go = [asyncio.Event(), asyncio.Event()]

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(counts)
        counts.append(0)
        while True:
            await head_of(reader)
            counts[number] += 1
            await go[number].wait()
            writer.write(OK)

    async with raw_server(handle) as url:
        replies = []
        for _ in go:
            replies.append(await http.send(url))
            await until(lambda: sum(counts) == len(replies))
        for number in (1, 0):
            go[number].set()
            await replies[number].begun()
            await rest(replies[number])
        for _ in range(3):
            await http.ask(url)
        assert counts == [4, 1]


async def test_calls_leave_half_of_the_files_to_clients(http: Http, caplog: pytest.LogCaptureFixture) -> None:
    """And fail as where the system has none left, which is no replica's fault."""
    go = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await head_of(reader)
            await go.wait()
            writer.write(OK)

    http.connections._most = 2
    async with raw_server(handle) as url, raw_server(handle) as other:
        held = [await http.send(url), await http.send(url)]
        for _ in range(2):
            with pytest.raises(ConnectError) as none_left:
                await http.send(other)
        assert none_left.value.cause is not None and none_left.value.cause.errno == errno.EMFILE
        assert before_the_head(none_left.value, stale=False, upstream="u").ours
        assert [record.getMessage() for record in caplog.records] == ["too many calls at once; new ones fail"]
        go.set()
        for reply in held:
            await reply.begun()
            assert await rest(reply) == b"ok"
        assert await http.ask(other) == b"ok", "one that waits for a call elsewhere makes room"
        assert len(http.connections.open) == 2


@pytest.mark.parametrize(("files", "most"), [(1024, 480), (20_000, 9968), (256, 96), (64, 24), (2, 1)])
def test_how_many_files_are_for_calls(files: int, most: int) -> None:
    assert most_calls(files) == most


async def test_each_replica_has_connections_of_its_own(http: Http) -> None:
    handle, counts = answering(OK)
    async with raw_server(handle) as url:
        one = replica_at(url)
        named = Replica(base=one.base, socket=None, label="named", authority="fleet:1")
        for replica in (one, named, one, named):
            await http.ask(replica)
        assert counts == [2, 2]


async def test_each_socket_file_has_connections_of_its_own(http: Http, socket_path: Path) -> None:
    """Though all of them are `localhost`."""
    servers = []
    for word in (b"one", b"two"):
        handle, _ = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n" + word)
        path = socket_path.with_name(word.decode())
        servers.append(await asyncio.start_unix_server(handle, path))
        for _ in range(2):
            assert await http.ask(f"unix:{path}") == word
    for server in servers:
        server.close()


async def test_given_back_after_the_end(http: Http) -> None:
    handle, _ = answering(OK)
    async with raw_server(handle) as url:
        reply = await http.send(url)
        await http.connections.close()
        with pytest.raises(LostError):
            await reply.begun()
        await http.ask(url)
        assert not http.connections._idle


# How it fails


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", DisconnectedError),
        (b"HTTP/1.1 200 OK\r\nContent-", DisconnectedError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", CutError),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", CutError),
    ],
)
async def test_cut_in_order(http: Http, answer: bytes, error: type[Exception]) -> None:
    """What had come is still read; then it is said that it is not all."""
    handle, _ = answering(answer, once=True)
    async with raw_server(handle) as url:
        reply = await http.send(url)
        got = b""
        with pytest.raises(error):
            await reply.begun()
            while data := await reply.read():
                got += data
        assert got == (b"ok" if error is CutError else b"")
        reply.close()
        await until(lambda: not http.connections.open)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n\r\nok"], ids=["before the head", "in the body"])
async def test_reset(http: Http, head: bytes) -> None:
    """A body that lasts until the close is not whole where the connection broke."""
    go = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(head)
        await go.wait()
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    async with raw_server(handle) as url:
        reply = await http.send(url)
        if head:
            await reply.begun()
            assert await reply.read() == b"ok"
        go.set()
        with pytest.raises(LostError):
            await reply.begun()
            await reply.read()
        reply.close()


async def test_where_nobody_is(http: Http, socket_path: Path) -> None:
    nobody = f"unix:{socket_path}"
    for url, why in (
        ("http://127.0.0.1:9/v1", "refused"),
        (nobody, "refused"),
        ("http://no-such-host.invalid/v1", "name"),
        (f"http://{'a' * 64}.test/v1", "address"),
        ("http://[fe80::1%25lo]:80/v1", "address"),
    ):
        with pytest.raises(ConnectError) as caught:
            await http.send(replica_at(url) if url == nobody else Replica(base=url, socket=None, label="r"))
        assert caught.value.why == why, url
    assert not http.connections.open


async def test_no_tls(http: Http) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 no\r\n\r\n")

    async with raw_server(plain) as url:
        with pytest.raises(ConnectError) as caught:
            await http.send(url.replace("http:", "https:"))
        assert caught.value.why == "tls"


async def test_no_tls_in_time(http: Http) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with raw_server(silent) as url:
        with pytest.raises(ConnectTimeoutError):
            await http.send(url.replace("http:", "https:"), seconds=0.2)
        assert not http.connections.open


# As much as is wanted


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
            with pytest.raises(LostError):
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


# Names


async def test_a_name_is_asked_for_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """By all who want it at the same time, too; and each gets another address first."""
    asked = 0

    async def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (1, 2, 3)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    connector = connecting.Connector()
    found = await asyncio.gather(*(connector._addresses("fleet.test", 80) for _ in range(4)))
    assert [addresses[0][4][0] for addresses in found] == ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.1"]
    assert asked == 1
    monkeypatch.setattr(connecting, "NAME_SECONDS", -1.0)
    for name in ("other.test", "fleet.test"):
        await connector._addresses(name, 80)
    assert asked == 2
    assert set(connector._known) == {("fleet.test", 80)}
    connector._forget(asyncio.get_running_loop().time() + 60)
    assert not connector._known


async def test_an_address_is_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", None)
    for host in ("127.0.0.1", "::1"):
        ((*_, address),) = await connecting.Connector()._addresses(host, 80)
        assert address[:2] == (host, 80)


async def test_an_address_that_refuses_or_says_nothing_is_not_waited_for(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, _ = answering(OK)
    async with raw_server(handle) as url, contextlib.AsyncExitStack() as stack:
        port = int(url.rpartition(":")[2].partition("/")[0])
        stack.enter_context(says_nothing("127.0.0.2", port))  # and nobody listens at the third address

        loop = asyncio.get_running_loop()
        lookup = loop.getaddrinfo

        async def getaddrinfo(host: str, port: int, **hints: Any) -> Any:
            if host != "fleet.test":
                return await lookup(host, port, **hints)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (2, 3, 1)]

        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        async with asyncio.timeout(2):
            assert await http.ask(Replica(base=f"http://fleet.test:{port}/v1", socket=None, label="r")) == b"ok"
