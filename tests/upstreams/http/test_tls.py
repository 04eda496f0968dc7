"""Connections over TLS: whom they are for, when they are used again, and how their end is told from a cut."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme

from nproxy.upstreams.http import connecting
from nproxy.upstreams.http.connections import Connections
from nproxy.upstreams.http.errors import ConnectError, LostError
from nproxy.upstreams.http.reply import Reply
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.via import Pseudonym
from tests.upstreams.http.asking import sent
from tests.waiting import until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
UNTIL_THE_END = b"HTTP/1.1 200 OK\r\n\r\nok"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def connections(authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connections]:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    monkeypatch.setattr(connecting, "trusted", lambda: context)
    connections = Connections(Pseudonym("nproxy-1"))
    yield connections
    await connections.close()
    assert not connections.open


@asynccontextmanager
async def serving(
    authority: trustme.CA, answer: Callable[[ssl.SSLSocket], object], *, joined_by: Executor | None = None
) -> AsyncIterator[int]:
    """A server for `localhost` in a thread, whose port this gives: it takes one connection, and answers by blocking.

    joined_by: waits for that thread, in place of the loop's pool.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)

    def serve() -> None:
        taken, _ = server.accept()
        with taken, suppress(OSError), context.wrap_socket(taken, server_side=True) as wrapped:
            answer(wrapped)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
    await asyncio.get_running_loop().run_in_executor(joined_by, thread.join)


async def send(connections: Connections, port: int, host: str = "localhost", *, authority: str | None = None) -> Reply:
    replica = Replica(base=f"https://{host}:{port}/v1", socket=None, label="r", authority=authority)
    reply = await sent(connections, replica)
    await reply.begun()
    return reply


async def test_a_connection_is_used_again(connections: Connections, authority: trustme.CA) -> None:
    """What the protocol below says, such as tickets, is no reason not to."""

    def twice(taken: ssl.SSLSocket) -> None:
        for _ in range(2):
            taken.recv(1 << 16)
            taken.sendall(OK)

    async with serving(authority, twice) as port:
        for reused in (False, True):
            reply = await send(connections, port)
            assert (reply.reused, await reply.read(), await reply.read()) == (reused, b"ok", b"")
            reply.close()


async def test_without_a_thread_to_read_the_authorities_no_connection_is_made(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "to_thread", no_thread)
        with pytest.raises(ConnectError):
            await send(connections, 1)


def test_a_file_of_authorities_that_is_not_there_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, authority: trustme.CA, tmp_path: Path
) -> None:
    file = tmp_path / "ca.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    connecting.trusted()
    (record,) = caplog.records
    assert record.getMessage() == "SSL_CERT_FILE cannot be read: its authorities are not trusted"
    assert vars(record)["fields"] == {"file": str(file)}
    authority.cert_pem.write_to_path(file)
    assert connecting.trusted().get_ca_certs()
    assert len(caplog.records) == 1


async def test_a_replica_that_is_named(connections: Connections, authority: trustme.CA) -> None:
    """Where its URL holds an address, its certificate is for the name; and it is HTTP/1.1 that is spoken."""
    spoken: list[str | None] = []

    def answer(taken: ssl.SSLSocket) -> None:
        spoken.extend((taken.selected_alpn_protocol(), taken.recv(1 << 16).decode()))
        taken.sendall(OK)

    async with serving(authority, answer) as port:
        reply = await send(connections, port, "127.0.0.1", authority="localhost:1")
        assert await reply.read() == b"ok"
        reply.close()
    assert spoken[0] is None
    assert "Host: localhost:1\r\n" in str(spoken[1])


async def test_names_that_nobody_can_look_up_are_in_nobodys_way(
    connections: Connections, authority: trustme.CA
) -> None:
    """All threads of the loop's pool may wait for a resolver; who goes to an address that is known needs none."""

    def answer(taken: ssl.SSLSocket) -> None:
        taken.recv(1 << 16)
        taken.sendall(OK)

    released = threading.Event()
    pool, waits = ThreadPoolExecutor(max_workers=1), ThreadPoolExecutor(max_workers=1)
    asyncio.get_running_loop().set_default_executor(pool)
    try:
        for hangs in (False, True):
            async with serving(authority, answer, joined_by=waits) as port:
                if hangs:
                    pool.submit(released.wait)
                async with asyncio.timeout(5):
                    reply = await send(connections, port, "127.0.0.1", authority="localhost:1")
                assert await reply.read() == b"ok"
                reply.close()
    finally:
        released.set()
        waits.shutdown()


def test_only_this_protocol_is_offered() -> None:
    """A server that could speak another one would, where both are offered."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.set_alpn_protocols(["h2", "http/1.1"])
    trustme.CA().issue_cert("localhost").configure_cert(server)
    ways = [ssl.MemoryBIO() for _ in range(2)]
    ends = [
        connecting.trusted().wrap_bio(ways[0], ways[1], server_hostname="localhost"),
        server.wrap_bio(ways[1], ways[0], server_side=True),
    ]
    for end in ends:
        with suppress(ssl.SSLError):
            end.do_handshake()
    assert ends[1].selected_alpn_protocol() == "http/1.1"


async def test_a_certificate_for_another_name(connections: Connections, authority: trustme.CA) -> None:
    async with serving(authority, lambda _: None) as port:
        with pytest.raises(ConnectError) as caught:
            await send(connections, port, "127.0.0.1")
        assert caught.value.why == "tls"


async def test_the_dot_at_the_end_of_a_name_is_for_the_resolver_only(
    connections: Connections, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its certificate nor the Host has it; SNI must not (RFC 6066, section 3)."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    def answer(taken: ssl.SSLSocket) -> None:
        spoken.append(taken.recv(1 << 16).decode())
        taken.sendall(OK)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    spoken: list[str] = []
    async with serving(authority, answer) as port:
        reply = await send(connections, port, "localhost.")
        assert await reply.read() == b"ok"
        reply.close()
    assert asked == ["localhost."]
    assert f"Host: localhost:{port}\r\n" in spoken[0]


async def test_a_server_that_does_not_close_holds_no_connection(
    connections: Connections, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has said that it will, but takes no notice of the end of TLS either."""
    monkeypatch.setattr(connecting, "TLS_END_SECONDS", 0.1)
    over = threading.Event()

    def answer(taken: ssl.SSLSocket) -> None:
        taken.recv(1 << 16)
        taken.sendall(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        over.wait(10)

    async with serving(authority, answer) as port:
        try:
            reply = await send(connections, port)
            assert await reply.read() == b"ok"
            reply.close()
            await until(lambda: not connections.open, seconds=5)
        finally:
            over.set()


@pytest.mark.parametrize("told", [True, False])
async def test_a_body_that_lasts_until_the_close(connections: Connections, authority: trustme.CA, told: bool) -> None:
    """It is whole where TLS says so; a close below it can be anybody's (RFC 9112, section 9.8)."""

    def answer(taken: ssl.SSLSocket) -> None:
        taken.recv(1 << 16)
        taken.sendall(UNTIL_THE_END)
        if told:
            taken.unwrap()

    async with serving(authority, answer) as port:
        reply = await send(connections, port)
        assert await reply.read() == b"ok"
        if told:
            assert await reply.read() == b""
        else:
            with pytest.raises(LostError):
                await reply.read()
        reply.close()
