"""The head of a request on the wire."""

from __future__ import annotations

from typing import Any

import pytest
from multidict import CIMultiDict
from yarl import URL

from nproxy.upstreams.http.head import Fields, request_head

VIA = "1.1 nproxy-1"


def lines(
    method: str = "POST",
    url: str = "http://host:8000/v1/chat/completions",
    headers: CIMultiDict[str] | None = None,
    size: int | None = 7,
    **more: Any,
) -> list[str]:
    head = request_head(method, URL(url, encoded=True), Fields.of(headers or CIMultiDict()), size, via=VIA, **more)
    assert head.endswith(b"\r\n\r\n")
    return head[:-4].decode().split("\r\n")


def test_a_call() -> None:
    headers = CIMultiDict([("Content-Type", "application/json"), ("X", "1"), ("x", "2"), ("Via", "1.1 another")])
    assert lines(headers=headers) == [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: host:8000",
        "Content-Type: application/json",
        "X: 1",
        "x: 2",
        "Via: 1.1 another",
        "Via: 1.1 nproxy-1",
        "Content-Length: 7",
    ]


@pytest.mark.parametrize(
    ("url", "target", "host"),
    [
        ("http://host/v1/a%2Fb?c=%20&d", "/v1/a%2Fb?c=%20&d", "host"),
        ("https://host:443/", "/", "host"),
        ("http://[::1]:80/v1", "/v1", "[::1]"),
        ("http://[::1]:8000/v1", "/v1", "[::1]:8000"),
    ],
)
def test_where_it_goes(url: str, target: str, host: str) -> None:
    assert lines(url=url)[:2] == [f"POST {target} HTTP/1.1", f"Host: {host}"]


def test_a_host_that_is_named() -> None:
    assert [line for line in lines(host="fleet:1") if line.lower().startswith("host")] == ["Host: fleet:1"]


def test_fields_of_one_request_stand_behind_those_that_it_shares() -> None:
    shared, own = CIMultiDict({"X": "1"}), [("Y", "2"), ("Y", "3")]
    assert lines(headers=shared, own=own)[2:] == ["X: 1", "Y: 2", "Y: 3", f"Via: {VIA}", "Content-Length: 7"]


@pytest.mark.parametrize(
    ("method", "size", "said"),
    [
        ("GET", 0, []),
        ("HEAD", 0, []),
        ("OPTIONS", 0, []),
        ("GET", 3, ["Content-Length: 3"]),
        ("POST", 0, ["Content-Length: 0"]),
        ("DELETE", 0, ["Content-Length: 0"]),
        ("PUT", None, ["Transfer-Encoding: chunked"]),
    ],
)
def test_how_long_the_body_is(method: str, size: int | None, said: list[str]) -> None:
    assert [line for line in lines(method=method, size=size) if line.startswith(("Content-", "Transfer-"))] == said


def test_a_length_that_is_said_is_kept() -> None:
    assert lines(headers=CIMultiDict({"content-length": "9"}), size=None)[2:] == ["content-length: 9", f"Via: {VIA}"]


@pytest.mark.parametrize("value", ["a\rb", "a\nb", "a\0b", "a\r\nX: b"])
def test_a_line_cannot_be_ended(value: str) -> None:
    for field in (("X", value), (value, "x")):
        with pytest.raises(ValueError, match="end its line"):
            lines(headers=CIMultiDict([field]))
        with pytest.raises(ValueError, match="end its line"):
            lines(own=[field])
    with pytest.raises(ValueError, match="end its line"):
        lines(method=value)


def test_bytes_that_are_no_utf8_go_on_as_they_came() -> None:
    value = b"\xff\xc3\xa9".decode("utf-8", "surrogateescape")
    head = request_head("GET", URL("http://h/"), Fields.of(CIMultiDict({"X": value})), 0, via=VIA)
    assert b"\r\nX: \xff\xc3\xa9\r\n" in head
