"""HTTP on raw sockets: what a well-behaved client library would not send."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest
from aiohttp.helpers import reify
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from nproxy.gateway import server
from nproxy.gateway.serve import running
from nproxy.gateway.server import Connection
from tests.fakes.upstream import Behaviour, FakeUpstream
from tests.gateway.conftest import Gateway, body, envelope, gateway_for, upstream_settings
from tests.gateway.raw import apart, exchange, post


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/status", "/v1/models", "/v1/models/fake-model"])
async def test_head_requests(gateway: Gateway, path: str) -> None:
    got = await gateway.client.get(path)
    head = await gateway.client.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type"] == got.headers["content-type"]


@pytest.mark.parametrize("line", ["CONNECT h:443", "TRACE /v1/chat/completions", "OPTIONS *", "GET h"])
async def test_methods_and_targets_that_are_not_for_us(gateway: Gateway, upstream: FakeUpstream, line: str) -> None:
    answer = await exchange(gateway, f"{line} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
    status, headers, content = apart(answer)
    assert status in (400, 404, 405)
    assert headers["content-type"].startswith("application/json")
    assert json.loads(content)["error"]["type"] == "invalid_request_error"
    assert upstream.requests == []


@pytest.mark.parametrize(
    "codings", ["gzip, chunked", "gzip, chunked\r\nX: y", "gzip\r\nTransfer-Encoding: chunked", "deflate, chunked"]
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
async def test_codings_that_are_not_decoded_are_refused(
    gateway: Gateway, upstream: FakeUpstream, path: str, codings: str
) -> None:
    """Passed on without the name of its coding, the body would be taken for what it is not."""
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: {codings}\r\nConnection: close\r\n\r\n"
    status, _, content = apart(await exchange(gateway, head.encode() + b"2\r\n{}\r\n0\r\n\r\n"))
    assert status in (400, 501)
    assert json.loads(content)["error"]["type"] == "invalid_request_error"
    assert upstream.requests == []


async def test_expect_continue(gateway: Gateway) -> None:
    content = json.dumps(body()).encode()
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(post(b"", f"Content-Length: {len(content)}", "Expect: 100-continue", "Connection: close"))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(content)
    status, _, got = apart(await reader.read())
    writer.close()
    assert status == 200
    assert json.loads(got)["choices"]


async def test_keep_alive_and_pipelining(gateway: Gateway) -> None:
    one = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    answer = await exchange(gateway, one * 100 + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 101


# Time limits of connections


@pytest.mark.parametrize("sent", [b"", b"GET /health HTT", b"GET /health HTTP/1.1\r\nHost: h\r\nX-A: b\r\n"])
async def test_a_head_that_does_not_come_is_not_waited_for(upstream: FakeUpstream, sent: bytes) -> None:
    config = {"upstreams": [upstream_settings(upstream)]}
    async with gateway_for(config, header_seconds=0.2) as gateway:
        assert await exchange(gateway, sent, 2.0) == b""


async def test_a_dripping_head_is_not_waited_for(upstream: FakeUpstream) -> None:
    config = {"upstreams": [upstream_settings(upstream)]}
    async with gateway_for(config, header_seconds=0.3) as gateway:
        reader, writer = await asyncio.open_connection(*gateway.address)
        writer.write(b"GET /health HTTP/1.1\r\nX: ")
        closed = asyncio.create_task(reader.read())
        async with asyncio.timeout(3):
            while not closed.done():
                writer.write(b"G")
                await asyncio.wait([closed], timeout=0.02)
        writer.close()
        with contextlib.suppress(ConnectionError):
            assert await closed == b""


async def test_the_second_head_has_its_time_too_and_idle_ones_have_more(upstream: FakeUpstream) -> None:
    config = {"upstreams": [upstream_settings(upstream)]}
    async with gateway_for(config, header_seconds=0.2) as gateway:
        reader, writer = await asyncio.open_connection(*gateway.address)
        writer.write(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        await reader.readuntil(b"}")
        await asyncio.sleep(0.5)
        assert not reader.at_eof(), "idle between requests is another limit"
        writer.write(b"GET /hea")
        async with asyncio.timeout(2):
            assert await reader.read() == b""
        writer.close()


async def test_a_head_in_pieces_has_one_limit_which_ends_with_it(gateway: Gateway) -> None:
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
    await reader.readuntil(b"}")
    (connection,) = gateway.http.connections
    assert isinstance(connection, Connection)
    async with asyncio.timeout(5):
        while connection._waiter is None or connection._waiter.done():
            await asyncio.sleep(0)
    connection.data_received(b"GET /hea")
    timer = connection._header_timer
    connection.data_received(b"lth HTTP/1.1\r\n")
    assert connection._header_timer is timer and timer is not None
    connection.data_received(b"Host: h\r\n\r\n")
    assert connection._header_timer is None and timer.cancelled()
    await reader.readuntil(b"}")
    writer.close()


async def test_a_connection_that_asks_nothing_more_is_closed_in_time(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "KEEPALIVE_SECONDS", 0.2)
    async with gateway_for({"upstreams": [upstream_settings(upstream)]}, header_seconds=60.0) as gateway:
        assert await exchange(gateway, b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n", 10.0) != b""


async def test_a_long_answer_is_not_cut_by_the_limit_for_heads(upstream: FakeUpstream) -> None:
    config = {"upstreams": [upstream_settings(upstream)]}
    upstream.behaviour = Behaviour(pause=0.4)
    async with gateway_for(config, header_seconds=0.2) as gateway:
        assert (await gateway.ask()).status_code == 200
        assert (await gateway.ask()).status_code == 200


async def test_a_body_that_does_not_come(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    from nproxy.gateway import bodies

    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.2)
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(post(b'{"model"', "Content-Length: 100", "Connection: close"))
    async with asyncio.timeout(3):
        status, _, content = apart(await reader.readuntil(b"}}"))
    writer.close()
    assert status == 408
    assert json.loads(content)["error"]["type"] == "invalid_request_error"


async def test_nodelay_towards_the_client(gateway: Gateway) -> None:
    await gateway.client.get("/health")
    (connection,) = gateway.http.connections
    assert connection.transport is not None
    sock = connection.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


async def test_a_bound_socket_is_taken_over(upstream: FakeUpstream) -> None:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    from nproxy.config import Config

    config = Config.model_validate({"upstreams": [upstream_settings(upstream)]})
    async with running(config, sock=sock) as gateway:
        assert gateway.url == f"http://127.0.0.1:{port}"


def test_the_private_attributes_of_aiohttp_that_are_used_exist() -> None:
    """Connection reads them; a release of aiohttp that renames them must fail here first."""
    slots = {name for ancestor in RequestHandler.__mro__ for name in getattr(ancestor, "__slots__", ())}
    assert slots >= {*server.PRIVATE}
    assert isinstance(BaseRequest.version, reify), "answers take their version from what is kept of the request's"
    for name in ("force_close", "connection_made", "connection_lost", "data_received", "handle_error"):
        assert callable(getattr(RequestHandler, name))


async def test_a_slash_behind_the_list_of_models_is_no_model_without_a_name(gateway: Gateway) -> None:
    answer = await gateway.client.get("/v1/models/")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "unknown_url") and "/v1/models" in error["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/chat/completions",
        "/v1/v1/chat/completions",
        "/v1/chat/completions/",
        "/v1/chat/completions/chat/completions",
        "/api/chat/completions",
    ],
)
async def test_a_base_url_that_is_nearly_right_is_told_the_right_path(gateway: Gateway, path: str) -> None:
    error = envelope(await gateway.ask(path))
    assert (error["code"], error["message"]) == (
        "unknown_url",
        "Unknown request path; did you mean /v1/chat/completions?",
    )
    assert envelope(await gateway.ask("/v1/none"))["message"] == "Unknown request path."
