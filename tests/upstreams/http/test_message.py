"""An answer read from bytes: whole, byte by byte, cut, and with more behind it than was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nproxy.upstreams.http.errors import CutError, DisconnectedError, HTTPError, MalformedError
from nproxy.upstreams.http.message import MOST_BYTES_FOR_NOTHING, MOST_FIELD_BYTES, MOST_FIELDS, Message


@dataclass
class Read:
    """What came of feeding a message: its head, its body, whether it is whole, and what was raised."""

    status: int | None
    fields: list[tuple[str, str]]
    body: bytes
    whole: bool
    reusable: bool
    error: type[HTTPError] | None


def read(*segments: bytes, method: str = "POST", ends: bool = False) -> Read:
    """Feed a message. ends: the other side closes behind it."""
    message, body, error = Message(method), b"", None
    try:
        for segment in segments:
            message.feed(segment)
            body += message.take()
        if ends:
            message.end()
    except HTTPError as raised:
        error = type(raised)
    head = message.head
    return Read(
        None if head is None else head.status,
        [] if head is None else list(head.headers.items()),
        body,
        message.complete,
        message.complete and message.reusable,
        error,
    )


OK = b"HTTP/1.1 200 OK\r\n"
SIZED = OK + b"Content-Length: 5\r\n\r\nhello"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"

WHOLE = {
    "content length": SIZED,
    "chunks": CHUNKED,
    "chunks with extensions and trailers": OK
    + b"transfer-encoding: chunked\r\n\r\n3;a=b\r\nhel\r\n2\r\nlo\r\n0\r\nx-sum: 1\r\nx-other: 2\r\n\r\n",
    "a space behind a chunk's size": OK + b"Transfer-Encoding: chunked\r\n\r\n3 \r\nhel\r\n2 \r\nlo\r\n0 \r\n\r\n",
    "lines that end by LF": b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
    "heads before it": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SIZED,
    "no reason": b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello",
    "an empty header": OK + b"X-Empty:\r\nX-More: 1\r\nContent-Length: 5\r\n\r\nhello",
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_and_byte_by_byte(name: str) -> None:
    data = WHOLE[name]
    whole = read(data)
    assert (whole.status, whole.body, whole.whole, whole.reusable, whole.error) == (200, b"hello", True, True, None)
    assert "Link" not in dict(whole.fields) and "x-sum" not in dict(whole.fields)
    assert read(*(data[at : at + 1] for at in range(len(data)))) == whole


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(WHOLE)), st.lists(st.integers(1, 200), max_size=6))
def test_P6_any_split_reads_the_same(name: str, cuts: list[int]) -> None:
    data = WHOLE[name]
    edges = [0, *sorted(cut for cut in set(cuts) if cut < len(data)), len(data)]
    assert read(*(data[a:b] for a, b in pairwise(edges))) == read(data)


@pytest.mark.parametrize("name", WHOLE)
def test_what_ends_early_is_never_whole(name: str) -> None:
    data = WHOLE[name]
    for end in range(len(data)):
        got = read(data[:end], ends=True)
        assert not got.whole
        assert got.error is (DisconnectedError if got.status is None else CutError)


@pytest.mark.parametrize("fields", [b"", b"Transfer-Encoding: identity\r\n"])
def test_a_body_that_lasts_until_the_close(fields: bytes) -> None:
    got = read(OK + fields + b"\r\nhel", b"lo", ends=True)
    assert (got.body, got.whole, got.reusable, got.error) == (b"hello", True, False, None)
    assert not read(OK + fields + b"\r\nhello").whole


@pytest.mark.parametrize(
    ("data", "reusable"),
    [
        (SIZED, True),
        (OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello", True),
        (SIZED + SIZED, False),
        (SIZED + b"!", False),
        (SIZED + b"HTTP/1.1 2", False),
    ],
)
def test_when_a_connection_may_be_used_again(data: bytes, reusable: bool) -> None:
    got = read(data)
    assert (got.body, got.whole, got.reusable, got.error) == (b"hello", True, reusable, None)


def test_more_that_comes_later_was_not_asked_for() -> None:
    message = Message("GET")
    message.feed(SIZED)
    before = message.reusable
    message.feed(b"HTTP")
    assert (before, message.reusable, message.take()) == (True, False, b"hello")


@pytest.mark.parametrize(
    ("method", "head"),
    [
        ("HEAD", OK + b"Content-Length: 5\r\n"),
        ("HEAD", OK + b"Transfer-Encoding: chunked\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n"),
    ],
)
def test_answers_without_a_body(method: str, head: bytes) -> None:
    got = read(head + b"\r\n", method=method)
    assert (got.body, got.whole, got.reusable) == (b"", True, True)


def test_a_body_where_none_belongs() -> None:
    got = read(SIZED, method="HEAD")
    assert (got.body, got.whole, got.reusable) == (b"", True, False)


def test_offering_an_upgrade_is_no_upgrade() -> None:
    got = read(OK + b"Upgrade: h2,h2c\r\nConnection: Upgrade\r\nContent-Length: 5\r\n\r\nhello")
    assert (got.status, got.body, got.whole) == (200, b"hello", True)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        OK + b"Content-Length: x\r\n\r\n",
        OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        OK + b"Content-Length : 5\r\n\r\nhello",
        OK + b"Content-Length  5: 5\r\n\r\nhello",
        OK + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        OK + b"Connection : close\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Transfer-Encoding: gzip\r\n\r\nhello",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 099 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        OK + b"X: a\r\n b\r\n\r\n",
        *(OK + b"X: a%cb\r\n\r\n" % control for control in (0x00, 0x01, 0x1F, 0x7F)),
        OK + b"X: " + b"a" * MOST_FIELD_BYTES + b"\r\n\r\n",
        OK + b"".join(b"X: %d\r\n" % number for number in range(MOST_FIELDS + 1)) + b"\r\n",
    ],
)
def test_malformed(data: bytes) -> None:
    for segments in ([data], [data[at : at + 1] for at in range(len(data))]):
        got = read(*segments)
        assert (got.error, got.whole) == (MalformedError, False)


ENDLESS = {
    "a reason": (b"HTTP/1.1 200 ", b"a" * 1000),
    "a header": (OK + b"X: ", b"a" * 1000),
    "heads": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 40),
    "an extension of a chunk": (OK + b"Transfer-Encoding: chunked\r\n\r\n5;", b"a" * 1000),
    "trailers": (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * 200),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_comes_to_nothing_comes_to_an_end(name: str) -> None:
    begins, goes_on = ENDLESS[name]
    got = read(begins, *[goes_on] * (MOST_BYTES_FOR_NOTHING // len(goes_on) + 1))
    assert (got.error, got.whole) == (MalformedError, False)
    assert read(begins, *[goes_on] * (MOST_BYTES_FOR_NOTHING // len(goes_on) - 1)).error is None


def test_a_head_and_a_piece_of_the_body_begin_the_count_anew() -> None:
    nothing = b"a" * (MOST_BYTES_FOR_NOTHING * 3 // 4)
    fields = b"".join(b"X: %b\r\n" % nothing[: MOST_FIELD_BYTES - 1] for _ in range(6))
    chunks = b"5;" + nothing + b"\r\nhello\r\n"
    got = read(OK + b"Transfer-Encoding: chunked\r\n" + fields + b"\r\n", *[chunks[:-9], chunks[-9:]] * 3, b"0\r\n\r\n")
    assert (got.body, got.whole, got.error) == (b"hello" * 3, True, None)


def test_the_media_type() -> None:
    message = Message("GET")
    message.feed(OK + b"Content-Type: Text/Event-Stream ; charset=utf-8\r\n\r\n")
    assert message.head is not None and message.head.content_type == "text/event-stream"
    message = Message("GET")
    message.feed(OK + b"\r\n")
    assert message.head is not None and message.head.content_type == ""


def test_the_largest_head_that_is_taken() -> None:
    fields = b"".join(b"X: %d\r\n" % number for number in range(MOST_FIELDS - 2))
    long = b"Y: " + b"a" * (MOST_FIELD_BYTES - 1) + b"\r\n"
    assert read(OK + fields + long + b"Content-Length: 5\r\n\r\nhello").whole


@pytest.mark.parametrize("value", [b"\xff\xc3\xa9", b"\xc2\x85 \xe2\x80\xa8", b"a\tb"])
def test_odd_bytes_of_a_header_are_kept(value: bytes) -> None:
    got = read(OK + b"X-Name: " + value + b" \r\nContent-Length: 5\r\n\r\nhello")
    assert dict(got.fields)["X-Name"].encode("utf-8", "surrogateescape") == value


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.one_of(st.sampled_from([SIZED, CHUNKED, OK, b"\r\n", b"0\r\n\r\n", b"5\r\n"]), st.binary(max_size=9)),
        max_size=8,
    )
)
def test_anything_is_read_or_refused(segments: list[bytes]) -> None:
    got = read(*segments, ends=True)
    assert got.whole or got.error is not None
