"""HTTP that is broken, ambiguous, slow or too much, over raw sockets: refused or borne, and others are served."""

from __future__ import annotations

import asyncio
import json

import pytest

from nproxy.gateway.heads import origin_form
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import CHAT, Gateway, Start, body, gateway_for, upstream_settings
from tests.gateway.raw import apart, exchange, post

CONTENT = json.dumps(body()).encode()
LENGTH = f"Content-Length: {len(CONTENT)}"
CHUNKED = "Transfer-Encoding: chunked"
ONE_CHUNK = b"%x\r\n%b\r\n0\r\n\r\n" % (len(CONTENT), CONTENT)
HEALTH = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"
LAST = b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


def answers(raw: bytes) -> list[int]:
    """The statuses of all answers on a connection."""
    return [int(part.split(b" ", 1)[0]) for part in raw.split(b"HTTP/1.1 ")[1:]]


async def refused(gateway: Gateway, upstream: FakeUpstream, sent: bytes, *statuses: int) -> None:
    """It is answered once, in the envelope and as HTTP/1.1; the connection ends, and nobody upstream hears of it."""
    raw = await exchange(gateway, sent)
    assert raw.startswith(b"HTTP/1.1 ") and len(answers(raw)) == 1
    status, headers, content = apart(raw)
    assert status in (statuses or (400,))
    assert headers["content-type"].startswith("application/json")
    assert headers["server"] == "nproxy"
    error = json.loads(content)["error"]
    assert error["type"] == "invalid_request_error"
    assert "canary" not in raw.decode("latin-1"), "what was sent is not repeated"
    assert upstream.calls == []
    assert (await gateway.client.get("/health")).status_code == 200


# Requests that two servers in a row might read as different ones


@pytest.mark.parametrize(
    "lines",
    [
        (LENGTH, CHUNKED),
        (CHUNKED, LENGTH),
        (LENGTH, LENGTH),
        (LENGTH, "Content-Length: 5"),
        (f"{LENGTH}, {len(CONTENT)}",),
        (f"Content-Length: +{len(CONTENT)}",),
        ("Content-Length: -1",),
        ("Content-Length: 0x10",),
        ("Content-Length: 99999999999999999999999",),
        ("Transfer-Encoding: canary",),
        ("Transfer-Encoding: chunked, gzip",),
        ("Transfer-Encoding: gzip, chunked",),
        (CHUNKED, CHUNKED),
        ("Transfer-Encoding : chunked",),
        (LENGTH, "X-A : canary"),
        (LENGTH, "no colon, canary"),
        (LENGTH, "X-A: a\r\n canary"),
        (LENGTH, "X-A: a\r\n\tcanary"),
        (LENGTH, "X-A: a\rX-B: canary"),
        (LENGTH, "X-A: a\nX-B: canary\x00"),
        (LENGTH, "X-A: \x00canary"),
        (LENGTH, "X-\x00A: canary"),
        (LENGTH, "Host: canary"),
        (LENGTH, ": canary"),
    ],
    ids=lambda lines: " + ".join(lines).encode("unicode_escape").decode(),
)
async def test_heads_that_can_be_read_in_two_ways(
    gateway: Gateway, upstream: FakeUpstream, lines: tuple[str, ...]
) -> None:
    await refused(gateway, upstream, post(CONTENT, *lines))


async def test_chunks_of_an_older_version(gateway: Gateway, upstream: FakeUpstream) -> None:
    """HTTP/1.0 has none, and a server of that time would take them for the next request."""
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(CONTENT), CONTENT)
    status, _, content = apart(await exchange(gateway, post(chunks, CHUNKED, version="1.0") + HEALTH))
    assert (status, json.loads(content)["error"]["type"]) == (400, "invalid_request_error"), "and nothing behind it"
    assert upstream.calls == []


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_a_body_that_will_be_too_large_is_not_waited_for(gateway: Gateway, path: str) -> None:
    sent = post(b"", "Content-Length: 99999999", "Expect: 100-continue").replace(CHAT.encode(), path.encode())
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(sent)
    async with asyncio.timeout(5):
        status, headers, _ = apart(await reader.readuntil(b"\r\n\r\n"))
    writer.close()
    assert (status, headers["connection"]) == (413, "close")


@pytest.mark.parametrize(
    ("target", "path"),
    [("/a?b", "/a?b"), ("http://h/a?b", "/a?b"), ("HTTPS://h", "/"), ("http://h?b", "/?b"), ("ftp://h/a", "ftp://h/a")],
)
def test_targets_are_read_as_paths(target: str, path: str) -> None:
    assert origin_form(target) == path


@pytest.mark.parametrize("content", [b"zz\r\ncanary\r\n0\r\n\r\n", b"f" * 17 + b"\r\ncanary\r\n", b"-1\r\ncanary\r\n"])
async def test_chunks_that_cannot_be_read(gateway: Gateway, upstream: FakeUpstream, content: bytes) -> None:
    await refused(gateway, upstream, post(content, CHUNKED))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
async def test_a_chunk_that_cannot_be_read_ends_the_wait_for_the_body(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(post(b'5\r\n{"mod\r\n', CHUNKED).replace(b"/v1/chat/completions", path.encode()))
    await asyncio.sleep(0.05)  # another segment
    writer.write(b"zz\r\ncanary")
    async with asyncio.timeout(5):
        assert answers(await reader.read()) == [400]
    writer.close()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_bare_line_feeds(gateway: Gateway, upstream: FakeUpstream) -> None:
    await refused(gateway, upstream, post(CONTENT, LENGTH).replace(b"\r\n", b"\n"))


@pytest.mark.parametrize("host", ["", "Host: a b", "Host: a, b", "Host: a/canary", "Host: canary@h", "Host: h:x"])
async def test_a_missing_or_malformed_host(gateway: Gateway, upstream: FakeUpstream, host: str) -> None:
    head = post(CONTENT, LENGTH).replace(b"Host: h\r\n", f"{host}\r\n".encode() if host else b"")
    await refused(gateway, upstream, head)


@pytest.mark.parametrize(
    "host", ["Host: h", "Host:", "Host: h:8000", "Host: [::1]:8000", "Host: a_b.example", "Host: 10.0.0.1"]
)
async def test_hosts_that_are_fine(gateway: Gateway, host: str) -> None:
    raw = await exchange(gateway, LAST.replace(b"Host: h", host.encode()))
    assert answers(raw) == [200]


# Targets, methods, versions


@pytest.mark.parametrize("host", ["h", "H"])
@pytest.mark.parametrize(
    "target", ["http://h/health", "HTTP://H/health", "https://h/health?x=1", "http://h", "http://h?/health"]
)
async def test_the_absolute_form_is_taken(gateway: Gateway, target: str, host: str) -> None:
    """Where it names no path, that is `/`, the playground's."""
    sent = LAST.replace(b"/health", target.encode()).replace(b"Host: h", f"Host: {host}".encode())
    assert answers(await exchange(gateway, sent)) == [200]


async def test_the_absolute_form_leads_nowhere_else(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(config={"passthrough": {"paths": "all"}})
    for target in (
        b"http://h/anything/%2e%2e/up?x=//",
        b"/anything/%252e%252e/up",
        b"/anything//up",
        b"/anything/%5c/up",
        b"/anything/%0a/up",
        b"http://elsewhere/any",
        b"http://h@elsewhere/any",
    ):
        assert answers(await exchange(gateway, LAST.replace(b"/health", target))) == [404]
    assert answers(await exchange(gateway, LAST.replace(b"/health", b"http://h/any?x=//"))) == [200]
    assert [seen.target for seen in upstream.requests] == ["/any?x=//"]


@pytest.mark.parametrize("target", ["http://", "http:///health", "ftp://h/health", "h/health", "*", "//health"])
async def test_targets_that_lead_nowhere(gateway: Gateway, target: str) -> None:
    (status,) = answers(await exchange(gateway, LAST.replace(b"/health", target.encode())))
    assert status in (400, 404)


@pytest.mark.parametrize("line", ["CONNECT h:443", "CONNECT /health", "TRACE /health", "TRACE /v1/chat/completions"])
async def test_CONNECT_and_TRACE(start: Start, upstream: FakeUpstream, line: str) -> None:
    gateway = await start(config={"passthrough": {"paths": "all"}})
    await refused(gateway, upstream, f"{line} HTTP/1.1\r\nHost: h\r\nX-A: canary\r\n\r\n".encode(), 400, 405)
    assert upstream.requests == []


async def test_what_is_served_is_said_beside_what_is_not(gateway: Gateway) -> None:
    _, headers, _ = apart(await exchange(gateway, b"TRACE /health HTTP/1.1\r\nHost: h\r\n\r\n"))
    assert "POST" in headers["allow"] and "TRACE" not in headers["allow"]


@pytest.mark.parametrize("line", ["FOO /health", "get /health", "GE\x00T /health", "G@T /health"])
async def test_methods_that_nobody_knows(gateway: Gateway, upstream: FakeUpstream, line: str) -> None:
    await refused(gateway, upstream, f"{line} HTTP/1.1\r\nHost: h\r\n\r\n".encode(), 400, 405)


@pytest.mark.parametrize(
    "version", ["HTTP/1.2", "HTTP/2.0", "HTTP/3.0", "HTTP/1", "HTTPS/1.1", "canary", "HTTP/1.1 canary"]
)
async def test_versions_that_are_not_spoken(gateway: Gateway, upstream: FakeUpstream, version: str) -> None:
    await refused(gateway, upstream, f"GET /health {version}\r\nHost: h\r\n\r\n".encode())
    await refused(gateway, upstream, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")


async def test_a_line_without_a_version(gateway: Gateway) -> None:
    assert b" 400 " in (await exchange(gateway, b"GET /health\r\n\r\n")).split(b"\r\n")[0]


@pytest.mark.parametrize("upgrade", ["websocket", "h2c", "TLS/1.0"])
async def test_an_upgrade_is_not_taken(gateway: Gateway, upgrade: str) -> None:
    lines = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {upgrade}", "HTTP2-Settings: AA", LENGTH)
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(post(CONTENT, *lines))
    async with asyncio.timeout(5):
        status, headers, _ = apart(await reader.readuntil(b"\r\n\r\n"))
    writer.close()
    assert status == 200
    assert "upgrade" not in headers


# Too much of it


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
        post(CONTENT, LENGTH, "X-A: " + "a" * 9000),
        post(CONTENT, LENGTH, "X" * 9000 + ": a"),
        post(CONTENT, LENGTH, *[f"X-{number}: {'a' * 1000}" for number in range(100)]),
        post(CONTENT, LENGTH, *[f"X-{number}: a" for number in range(200)]),
    ],
    ids=["a target", "a value", "a name", "all together", "many"],
)
async def test_giant_heads(gateway: Gateway, upstream: FakeUpstream, sent: bytes) -> None:
    await refused(gateway, upstream, sent, 431)


@pytest.mark.parametrize(("size", "status"), [(64 << 10, 200), ((64 << 10) + 1, 431)])
async def test_the_most_bytes_of_all_header_lines(gateway: Gateway, size: int, status: int) -> None:
    lines = ["Host: h", "Connection: close", *[f"X-{number}: {'a' * 8000}" for number in range(8)]]
    rest = size - sum(len(line) + 2 for line in [*lines, "X-8: "])
    head = "\r\n".join(["GET /health HTTP/1.1", *lines, f"X-8: {'a' * rest}", "", ""])
    assert apart(await exchange(gateway, head.encode()))[0] == status


async def test_a_head_without_end_is_cut_off(gateway: Gateway) -> None:
    reader, writer = await asyncio.open_connection(*gateway.address)
    try:
        writer.write(b"GET / HTTP/1.1\r\nX-A: ")
        async with asyncio.timeout(5):
            while not reader.at_eof() and not writer.is_closing():
                writer.write(b"a" * 65536)
                await writer.drain()
                await asyncio.sleep(0)
    except ConnectionError:
        pass
    finally:
        writer.close()
    assert (await gateway.client.get("/health")).status_code == 200


async def test_a_thousand_requests_in_one_segment(gateway: Gateway) -> None:
    raw = await exchange(gateway, HEALTH * 999 + LAST, 20)
    assert answers(raw) == [200] * 1000


async def test_requests_before_garbage_are_answered(gateway: Gateway) -> None:
    assert answers(await exchange(gateway, HEALTH * 3 + b"\x00garbage\r\n\r\n" + HEALTH)) == [200, 200, 200, 400]
    raw = await exchange(gateway, post(CONTENT, LENGTH) + b"garbage\r\n\r\n")
    assert answers(raw) == [200, 400]


async def test_a_request_is_smuggled_in_no_body(gateway: Gateway, upstream: FakeUpstream) -> None:
    inner = b"GET /status HTTP/1.1\r\nHost: h\r\n\r\n"
    sent = post(inner, f"Content-Length: {len(inner)}") + LAST
    assert answers(await exchange(gateway, sent)) == [400, 200]
    assert upstream.requests == []


# Slow and many


@pytest.mark.parametrize("kind", ["heads", "bodies"])
async def test_many_slow_clients_keep_nobody_waiting(upstream: FakeUpstream, kind: str) -> None:
    """200 connections that say a byte now and then; the time limits end each of them."""
    begun = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nX-A: " if kind == "heads" else post(b"{", LENGTH)
    config = {"upstreams": [upstream_settings(upstream)]}
    async with gateway_for(config, header_seconds=1.0 if kind == "heads" else 10.0) as gateway:
        slow = [await asyncio.open_connection(*gateway.address) for _ in range(200)]
        for _, writer in slow:
            writer.write(begun)
        for _ in range(3):
            for _, writer in slow:
                writer.write(b"a")
            async with asyncio.timeout(5):
                assert len((await gateway.ask(n=2)).json()["choices"]) == 2
        if kind == "heads":
            async with asyncio.timeout(10):
                assert [await reader.read() for reader, _ in slow] == [b""] * 200
        for _, writer in slow:
            writer.close()
    assert len(upstream.calls) == 6
