"""Connections on which TLS is not agreed on yet: they are counted, they have their time, and they hold nothing up."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trustme

from nproxy.config import Config
from nproxy.gateway import tls
from nproxy.gateway.serve import Running, drain, hand_over, running
from tests.fakes.upstream import FakeUpstream
from tests.gateway.secure import HEALTH, Stepping, address, put, secure, trust

LONG, SHORT = 60.0, 0.5
"""Seconds for a handshake: what nothing here waits for, and what ends soon."""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    return trust(authority)


@pytest.fixture
def config(authority: trustme.CA, upstream: FakeUpstream, tmp_path: Path) -> Config:
    return Config.model_validate(secure(authority, upstream, tmp_path))


@pytest.fixture
async def gateway(config: Config) -> AsyncIterator[Running]:
    async with running(config, header_seconds=LONG) as started:
        yield started


async def held(gateway: Running, count: int) -> None:
    """Wait until so many connections are counted."""
    async with asyncio.timeout(10):
        while len(gateway.http._transports) != count:
            await asyncio.sleep(0.01)


async def stalled(stack: AsyncExitStack, gateway: Running, trusting: ssl.SSLContext, how: str, more: int) -> None:
    """Have so many more clients that do not get on with their handshakes, until the stack is closed."""
    count = len(gateway.http._transports) + more
    for _ in range(more):
        client = await Stepping.connect(trusting, address(gateway))
        stack.callback(client.writer.close)
        if how == "half a hello":
            client.half_hello()
    await held(gateway, count)


async def served(gateway: Running, trusting: ssl.SSLContext) -> bool:
    """Whether a client that does everything right is answered."""
    client = await Stepping.connect(trusting, address(gateway))
    try:
        await client.shake()
        return b"200 OK" in await client.ask()
    except (ConnectionError, ssl.SSLError):
        return False
    finally:
        client.writer.close()


@pytest.mark.parametrize("how", ["nothing", "half a hello"])
async def test_they_are_counted_and_refused_beyond_the_limit(
    gateway: Running, trusting: ssl.SSLContext, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.http._most = 8
    async with AsyncExitStack() as stack:
        await stalled(stack, gateway, trusting, how, 8)
        for _ in range(2):
            refused = await Stepping.connect(trusting, address(gateway))
            async with asyncio.timeout(10):
                assert await refused.reader.read() == b"", "closed at once, not when the time for handshakes is over"
            refused.writer.close()
            await held(gateway, 8)
        assert not await served(gateway, trusting)
        assert [record.getMessage() for record in caplog.records].count(
            "too many connections; new ones are closed"
        ) == 1
    assert (
        gateway.app.metrics.registry.get_sample_value("nproxy_requests_refused_total", {"reason": "connections"}) == 3
    )
    await held(gateway, 0)
    assert await served(gateway, trusting)


async def test_one_that_goes_makes_room(gateway: Running, trusting: ssl.SSLContext) -> None:
    gateway.http._most = 8
    async with AsyncExitStack() as others, AsyncExitStack() as one:
        await stalled(others, gateway, trusting, "half a hello", 7)
        one.callback((await Stepping.connect(trusting, address(gateway))).writer.close)
        await held(gateway, 8)
        assert not await served(gateway, trusting)
        await one.aclose()
        await held(gateway, 7)
        assert await served(gateway, trusting)


@pytest.mark.parametrize("how", ["nothing", "half a hello"])
async def test_when_their_time_is_over_they_are_closed(config: Config, trusting: ssl.SSLContext, how: str) -> None:
    async with running(config, header_seconds=SHORT) as gateway:
        gateway.http._most = 8
        clients = [await Stepping.connect(trusting, address(gateway)) for _ in range(8)]
        for client in clients:
            if how == "half a hello":
                client.half_hello()
        async with asyncio.timeout(10):
            assert [await client.reader.read() for client in clients] == [b""] * 8
            await gateway.http.vacant()
        assert await served(gateway, trusting)
        for client in clients:
            client.writer.close()


async def test_behind_a_handshake_a_head_has_its_time(config: Config, trusting: ssl.SSLContext) -> None:
    async with running(config, header_seconds=SHORT) as gateway:
        client = await Stepping.connect(trusting, address(gateway))
        await client.shake()
        async with asyncio.timeout(10):
            assert await client.ask(b"GET /health HTTP/1.1\r\n") == b""
        client.writer.close()


def junk(client: Stepping) -> None:
    client.writer.write(HEALTH)


def close(client: Stepping) -> None:
    client.writer.close()


def half_close(client: Stepping) -> None:
    client.writer.write_eof()


def close_within(client: Stepping) -> None:
    client.half_hello()
    client.writer.close()


def reset(client: Stepping) -> None:
    client.half_hello()
    client.writer.transport.abort()


@pytest.mark.parametrize("way", [junk, close, half_close, close_within, reset])
async def test_whatever_way_one_ends_it_is_over(
    gateway: Running, trusting: ssl.SSLContext, way: Callable[[Stepping], None], caplog: pytest.LogCaptureFixture
) -> None:
    client = await Stepping.connect(trusting, address(gateway))
    way(client)
    assert await served(gateway, trusting), "the other one was accepted before"
    await held(gateway, 0)
    await gateway.http.vacant()
    assert gateway.http.connections == []
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []
    client.writer.close()


@pytest.mark.parametrize("reset", [False, True])
async def test_one_that_is_gone_before_it_is_accepted_is_over(
    gateway: Running, trusting: ssl.SSLContext, reset: bool
) -> None:
    for _ in range(10):
        sock = socket.create_connection(address(gateway))
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    assert await served(gateway, trusting), "the others were accepted before"
    await held(gateway, 0)
    assert gateway.http.connections == []


async def test_one_who_does_not_trust_the_certificate_goes(gateway: Running) -> None:
    client = await Stepping.connect(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), address(gateway))
    with pytest.raises(ssl.SSLCertVerificationError):
        await client.shake()
    await held(gateway, 0)
    client.writer.close()


async def test_bytes_that_come_with_the_connection_are_not_lost(gateway: Running, trusting: ssl.SSLContext) -> None:
    """The hello is here before the connection is accepted, the request with the handshake's last bytes."""
    for _ in range(10):
        client = await Stepping.connect(trusting, address(gateway), eager=True)
        await client.shake()
        assert b"200 OK" in await client.ask()
        client.writer.close()


async def test_a_certificate_changes_while_handshakes_stall(
    gateway: Running, config: Config, authority: trustme.CA, trusting: ssl.SSLContext, tmp_path: Path
) -> None:
    silent = await Stepping.connect(trusting, address(gateway))
    begun = await Stepping.connect(trusting, address(gateway))
    begun.half_hello()
    await held(gateway, 2)
    other = authority.issue_cert("127.0.0.1")
    put(tmp_path, other)
    gateway.app.reconfigure(config)
    new = await Stepping.connect(trusting, address(gateway))
    for client in (new, begun, silent):
        await client.shake()
        assert b"200 OK" in await client.ask()
        client.writer.close()
    expected = ssl.PEM_cert_to_DER_cert(other.cert_chain_pems[0].bytes().decode())
    assert new.tls.getpeercert(binary_form=True) == expected
    await held(gateway, 0)


async def test_the_limit_is_asked_when_a_connection_comes(gateway: Running, trusting: ssl.SSLContext) -> None:
    """Not again behind its handshake, when one that is refused may still be there."""
    gateway.http._most = 1
    client = await Stepping.connect(trusting, address(gateway))
    await held(gateway, 1)
    gateway.http._most = 0
    await client.shake()
    assert b"200 OK" in await client.ask()
    client.writer.close()


async def test_a_goodbye_that_does_not_come_is_not_waited_for(
    gateway: Running, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "SHUTDOWN_SECONDS", SHORT)
    gateway.http._sweep_timer.cancel()
    client = await Stepping.connect(trusting, address(gateway))
    await client.shake()
    assert b"200 OK" in await client.ask()
    await held(gateway, 0)
    client.writer.close()


async def test_what_is_closing_is_broken_off_as_without_TLS(
    gateway: Running, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "SHUTDOWN_SECONDS", LONG)
    client = await Stepping.connect(trusting, address(gateway))
    await client.shake()
    assert b"200 OK" in await client.ask()  # and no goodbye
    for _ in range(2):
        gateway.http._sweep()
    await held(gateway, 0)
    client.writer.close()


async def test_they_do_not_keep_the_gateway_from_ending(config: Config, trusting: ssl.SSLContext) -> None:
    async with asyncio.timeout(20):
        async with running(config, header_seconds=LONG) as gateway:
            clients = [await Stepping.connect(trusting, address(gateway)) for _ in range(4)]
            for client in clients[:2]:
                client.half_hello()
            await held(gateway, 4)
            await drain(gateway.app, LONG)
        assert [await client.reader.read() for client in clients] == [b""] * 4
    await held(gateway, 0)
    assert gateway.http.connections == []
    for client in clients:
        client.writer.close()


async def test_one_that_was_begun_is_served_by_who_leaves_the_port(gateway: Running, trusting: ssl.SSLContext) -> None:
    client = await Stepping.connect(trusting, address(gateway))
    client.half_hello()
    await held(gateway, 1)
    leaving = asyncio.create_task(hand_over(gateway, LONG))
    await asyncio.sleep(0.1)
    assert not leaving.done()
    await client.shake()
    answer = await client.ask(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
    assert b"200 OK" in answer and b"connection: close" in answer.lower()
    client.writer.close()
    async with asyncio.timeout(10):
        await leaving
