"""Group Q on raw sockets: methods, paths, framing."""

from __future__ import annotations

import json

import pytest

from tests.conformance.settings import of_http
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import CHAT, Gateway, body, envelope
from tests.gateway.raw import apart, exchange, post


@of_http
@pytest.mark.parametrize(("path", "allow"), [(CHAT, "POST"), ("/v1/completions", "POST"), ("/v1/models", "GET, HEAD")])
async def test_Q10_wrong_method(gateway: Gateway, path: str, allow: str) -> None:
    method = "DELETE" if allow != "POST" else "GET"
    answer = await gateway.client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allow
    assert envelope(answer)["code"] == "method_not_allowed"


@of_http
@pytest.mark.parametrize(
    "path",
    [
        "//v1/embeddings",
        "/v1//embeddings",
        "/v1/embeddings/../../admin",
        "/v1/embeddings/%2e%2e/admin",
        "/v1/embeddings/%2E%2E%2Fadmin",
        "/v1/embeddings/%252e%252e/admin",
        "/v1/embeddings/..%5cadmin",
        "/v1/embeddings/a%00b",
        "/v1/audio/./x",
        "/v1/nothing",
        "/v1",
        "/admin",
        "http://169.254.169.254/v1/embeddings",
    ],
)
async def test_Q11_no_path_escapes(gateway: Gateway, upstream: FakeUpstream, path: str) -> None:
    answer = await exchange(gateway, f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
    status, _, content = apart(answer)
    assert status == 404
    assert json.loads(content)["error"]["code"] == "unknown_url"
    assert upstream.requests == []


@of_http
async def test_Q11_what_is_encoded_stays_encoded(gateway: Gateway, upstream: FakeUpstream) -> None:
    target = "/v1/embeddings/a%2Fb%20c?q=%2e%2e&x=a+b"
    await exchange(gateway, f"GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
    assert [seen.target for seen in upstream.requests] == [target]


@of_http
@pytest.mark.parametrize("stream", [False, True])
async def test_Q13_http_1_0_gets_no_chunks(gateway: Gateway, stream: bool) -> None:
    content = json.dumps(body(n=2, stream=stream)).encode()
    answer = await exchange(gateway, post(content, f"Content-Length: {len(content)}", version="1.0"))
    status, headers, got = apart(answer)
    assert status == 200
    assert "transfer-encoding" not in headers
    if stream:
        assert got.startswith(b"data: {")
        assert got.endswith(b"data: [DONE]\n\n")
    else:
        assert len(json.loads(got)["choices"]) == 2


PLAIN = json.dumps(body(n=2)).encode()
GOOD = b"%x\r\n%b\r\n0\r\n\r\n" % (len(PLAIN), PLAIN)
"""A valid body in chunked encoding."""


@of_http
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (post(GOOD, "Transfer-Encoding: chunked", "Content-Length: 5"), 400),
        (post(GOOD, "Transfer-Encoding: chunked", version="1.0"), 400),
        (post(b"{}", "Content-Length: 2", "Content-Length: 3"), 400),
        (post(b"{}", "Content-Length: +2"), 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n", 400),
        (b"GET /secret-echo\x00 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03secret-echo", 400),
        (b"secret-echo\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 10_000 + b"\r\n\r\n", 431),
    ],
    ids=["Q15-both", "Q15-http10", "two-lengths", "plus", "obs-fold", "nul", "tls", "words", "long"],
)
async def test_Q15_requests_that_can_be_read_in_two_ways(
    gateway: Gateway, upstream: FakeUpstream, sent: bytes, status: int
) -> None:
    answer = await exchange(gateway, sent)
    got, headers, content = apart(answer)
    assert got == status
    assert headers["content-type"].startswith("application/json")
    assert headers["server"] == "nproxy" and headers["x-request-id"]
    error = json.loads(content)["error"]
    assert error["type"] == "invalid_request_error"
    assert b"secret-echo" not in answer
    assert b"aiohttp" not in answer
    assert upstream.requests == []
