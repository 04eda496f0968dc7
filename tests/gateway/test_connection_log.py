"""What came and became no request: the operator finds one line of it, which quotes nothing."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from nproxy.config import Config
from nproxy.gateway.serve import running
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import Gateway
from tests.gateway.raw import apart
from tests.gateway.secure import address, secure
from tests.gateway.test_admin import fleet_for

NO_REQUEST = "received data is not a request"
NO_TLS = "TLS handshake failed"


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="nproxy.gateway")


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    records = [record for record in caplog.records if record.name == "nproxy.gateway" and record.levelno < 30]
    return [(record.getMessage(), vars(record).get("fields", {})) for record in records]


async def send(where: tuple[str, int], sent: bytes) -> bytes:
    """Send bytes, and read until the server closes."""
    reader, writer = await asyncio.open_connection(*where)
    try:
        writer.write(sent)
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def hello() -> bytes:
    """How a TLS client begins."""
    outgoing = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="canary")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


GET = b"GET /canary HTTP/1.1\r\nHost: h\r\n"


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (hello(), "This is TLS, but the port expects plain HTTP."),
        (b"canary\x00\xff\r\n\r\n", "The request is not valid HTTP."),
        (GET + b"canary\r\n\r\n", "The request is not valid HTTP."),
        (GET + b"X: " + b"c" * 9000 + b"\r\n\r\n", "The request line or a header is too long."),
        (GET + b"".join(b"X%d: c\r\n" % i for i in range(200)) + b"\r\n", "The request has more than 128 headers."),
    ],
)
async def test_on_a_plain_port(gateway: Gateway, caplog: pytest.LogCaptureFixture, sent: bytes, why: str) -> None:
    ids = [apart(await send(gateway.address, sent))[1]["x-request-id"] for _ in range(20)]
    assert len({*ids}) == 20
    ends = {"client": "127.0.0.1", "port": gateway.address[1]}
    assert told(caplog) == [(NO_REQUEST, {"why": why, "request_id": ids[0], **ends})]
    assert "canary" not in caplog.text


async def test_in_the_body_of_a_request_it_has_no_id_of_its_own(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(head)
    async with asyncio.timeout(10):
        while not gateway.app.inflight:
            await asyncio.sleep(0.01)
        writer.write(b"canary\r\n")
        answer = await reader.read()
    writer.close()
    ((_, fields),) = [line for line in told(caplog) if line[0] == NO_REQUEST]
    assert "x-request-id" in apart(answer)[1] and "request_id" not in fields


async def test_an_IPv4_client_of_a_port_for_both_has_its_own_address(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as both:
        async with running(Config(), sock=both):
            await send(("127.0.0.1", both.getsockname()[1]), hello())
    assert [fields["client"] for message, fields in told(caplog) if message == NO_REQUEST] == ["127.0.0.1"]


async def test_on_the_admin_port(upstream: FakeUpstream, caplog: pytest.LogCaptureFixture) -> None:
    async with fleet_for(upstream.url) as fleet:
        port = fleet.admin.base_url.port
        assert port is not None
        await send(("127.0.0.1", port), hello())
    assert [fields["port"] for message, fields in told(caplog) if message == NO_REQUEST] == [port]


async def test_on_a_port_for_TLS(upstream: FakeUpstream, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(Config.model_validate(secure(trustme.CA(), upstream, tmp_path))) as gateway:
        where = address(gateway)
        for _ in range(3):
            await send(where, GET + b"\r\n")
            await send(where, b"\x00" * 100)
        caught = told(caplog)
        for part in (b"", hello()[:20]):  # those who only look whether the port is open
            _, writer = await asyncio.open_connection(*where)
            writer.write(part)
            await writer.drain()
            writer.close()
        async with asyncio.timeout(10):
            await gateway.http.vacant()
    ends = {"client": "127.0.0.1", "port": where[1]}
    assert caught == [
        (NO_TLS, {"why": "This is plain HTTP, but the port expects TLS.", **ends}),
        (NO_TLS, {"why": "OpenSSL reports WRONG_VERSION_NUMBER.", **ends}),
    ]
    assert told(caplog)[len(caught) :] == []
