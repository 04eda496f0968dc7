"""When a connection is used again, when not, and how many there may be."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from multidict import CIMultiDict

from nproxy.concurrency.tasks import beside
from nproxy.upstreams.failures import before_the_head
from nproxy.upstreams.http import connections
from nproxy.upstreams.http.connections import most_calls
from nproxy.upstreams.http.errors import ConnectError, LostError
from nproxy.upstreams.http.sending import SLICE_BYTES, Upload
from nproxy.upstreams.replicas import Replica
from tests.fakes.upstream import raw_server
from tests.upstreams.conftest import replica_at
from tests.upstreams.http.asking import OK, Http, Streams, aiohttp_server, answering, head_of, pieces, rest
from tests.waiting import until


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


async def test_a_kept_connection_gets_the_head_of_an_upload_at_once(http: Http) -> None:
    """A client may begin its body late, and a server closes a connection on which no request comes."""
    head_came = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(OK)
        await head_of(reader)
        head_came.set()
        assert await reader.readuntil(b"0\r\n\r\n") == b"4\r\nlate\r\n0\r\n\r\n"
        writer.write(OK)

    async def late() -> AsyncIterator[bytes]:
        async with asyncio.timeout(5.0):
            await head_came.wait()
        yield b"late"

    async with raw_server(handle) as url:
        await http.ask(url)
        upload = Upload(late(), None)
        async with beside(upload.run()):
            reply = await http.send(url, upload)
            await reply.begun()
            assert reply.reused and await rest(reply) == b"ok"


def answering_after(go: asyncio.Event) -> Streams:
    """A handler that answers no request before `go` is set."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await head_of(reader)
            await go.wait()
            writer.write(OK)

    return handle


@pytest.mark.parametrize("left", ["too old", "forgotten"])
async def test_idle_connections_that_are_left_make_room_at_once(
    http: Http, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    monkeypatch.setattr(http.connections, "_most", 3)
    go = asyncio.Event()
    handle = answering_after(go)

    async with raw_server(handle) as url:
        replies = [await http.send(url) for _ in range(3)]
        go.set()
        for reply in replies:
            await reply.begun()
            await rest(reply)
        if left == "too old":
            monkeypatch.setattr(connections, "KEEPALIVE_SECONDS", 0.0)
        else:
            http.connections.forget(replica_at(url))
        assert await http.ask(url) == b"ok"


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
    handle = answering_after(go)

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


async def test_a_connection_that_its_server_has_closed_makes_no_room(http: Http) -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(OK)
        writer.close()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    http.connections._most = 1
    async with raw_server(once) as url, raw_server(never) as other:
        assert await http.ask(url) == b"ok"
        await until(lambda: not http.connections.open)
        held = await http.send(other)
        with pytest.raises(ConnectError):
            await http.send(other)
        held.close()


async def test_calls_with_long_bodies_hold_no_more_files_than_others(http: Http) -> None:
    """Each has its socket open twice while there is room for that; not at the cost of another call, or of clients."""

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    http.connections._most = 6
    async with raw_server(never) as url:
        held, files = [], []
        for _ in range(6):
            held.append(await http.send(url, (bytes(SLICE_BYTES + 1),)))
            files.append(len(http.connections.open) + _second_files(http))
        assert files == [2, 4, 6, 6, 6, 6]
        with pytest.raises(ConnectError):
            await http.send(url)
        held.pop().close()
        await until(lambda: len(http.connections.open) == 5)
        held.append(await http.send(url, (bytes(SLICE_BYTES + 1),)))
        for reply in held:
            reply.close()
        await until(lambda: not http.connections.open)
        assert not http.connections._doubled


def _second_files(http: Http) -> int:
    return sum(connection._second is not None for connection in http.connections.open)


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
