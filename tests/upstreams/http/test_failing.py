"""How a call fails: what it says of the server, and that its connection is gone."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from nproxy.upstreams.http.errors import ConnectError, ConnectTimeoutError, CutError, DisconnectedError, LostError
from nproxy.upstreams.replicas import Replica
from tests.fakes.upstream import raw_server
from tests.upstreams.conftest import replica_at
from tests.upstreams.http.asking import Http, answering, head_of
from tests.waiting import until


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
