"""What one event of a stream is."""

from __future__ import annotations

import pytest

from nproxy.openai.chunks import MalformedChunk
from nproxy.openai.errors import ApiError
from nproxy.openai.sse import SSEDecoder
from nproxy.openai.stream_reading import Mark, read_event


def read(block: bytes) -> object:
    (event,) = SSEDecoder().feed(block + b"\n\n")
    return read_event(event)


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (b"data: [DONE]", Mark.DONE),
        (b"data:  [DONE] ", Mark.DONE),
        (b"data: null", Mark.NOTHING),
        (b"data: {}", Mark.NOTHING),
        (b'data: {"choices": []}', {"choices": []}),
        (b'event: message\ndata: {"choices": []}', {"choices": []}),
        (b'data: {"error": null, "choices": []}', {"error": None, "choices": []}),
    ],
)
def test_chunks_and_marks(block: bytes, found: object) -> None:
    assert read(block) == found


@pytest.mark.parametrize(
    ("block", "status", "words"),
    [
        (b'data: {"error": {"message": "boom", "code": 503}}', 503, "boom"),
        (b'data: {"error": "boom"}', 500, "boom"),
        (b'data: {"object": "error", "message": "boom", "code": 400}', 400, "boom"),
        (b'event: error\ndata: {"message": "boom", "code": 429}', 429, "boom"),
        (b'event: error\ndata: {"detail": "boom"}', 500, "boom"),
        (b"event: error\ndata: boom", 500, "boom"),
        (b"event: error\ndata: null", 500, "The upstream answered 500 Internal Server Error."),
        (b'error: {"code": 500, "message": "boom", "type": "server_error"}', 500, "boom"),
    ],
)
def test_errors(block: bytes, status: int, words: str) -> None:
    error = read(block)
    assert isinstance(error, ApiError)
    assert (error.status, error.message) == (status, words)


@pytest.mark.parametrize("block", [b"data: {", b"data: []", b"data: boom"])
def test_what_is_none_of_these(block: bytes) -> None:
    with pytest.raises(MalformedChunk):
        read(block)
