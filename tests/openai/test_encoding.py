"""Bodies that come compressed: decoded, refused, or found to be a bomb."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest

from nproxy.openai.encoding import Decoder
from nproxy.openai.errors import ApiError

WORDS = b'{"prompt": "' + b"word " * 50 + b'"}'


def decoded(encoding: str | None, body: bytes, limit: int = 1000, step: int = 7) -> bytes:
    decoder = Decoder(encoding, limit)
    plain = b"".join([decoder.feed(body[at : at + step]) for at in range(0, len(body), step)])
    decoder.end()
    return plain


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (None, WORDS),
        ("identity", WORDS),
        ("", WORDS),
        ("gzip", gzip.compress(WORDS, mtime=0)),
        (" X-GZIP", gzip.compress(WORDS, mtime=0)),
        ("deflate", zlib.compress(WORDS)),
    ],
)
def test_what_was_meant(encoding: str | None, body: bytes) -> None:
    assert decoded(encoding, body) == WORDS
    assert decoded(encoding, body, limit=len(WORDS)) == WORDS


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("br", WORDS, 415),
        ("zstd", WORDS, 415),
        ("foo", WORDS, 415),
        ("gzip, gzip", WORDS, 415),
        ("gzip", b"", 400),
        ("gzip", WORDS, 400),
        ("gzip", gzip.compress(WORDS, mtime=0)[:-4], 400),
        ("gzip", gzip.compress(WORDS, mtime=0) + b"more", 400),
        ("deflate", gzip.compress(WORDS, mtime=0), 400),
        (None, WORDS * 4, 413),
        ("gzip", gzip.compress(WORDS * 4, mtime=0), 413),
    ],
)
@pytest.mark.parametrize("step", [7, 1 << 20])
def test_what_is_refused(encoding: str | None, body: bytes, status: int, step: int) -> None:
    with pytest.raises(ApiError) as refused:
        decoded(encoding, body, step=step)
    assert refused.value.status == status


def test_a_bomb_is_noticed_before_it_has_grown() -> None:
    bomb = gzip.compress(bytes(16 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as refused:
            Decoder("gzip", 1 << 10).feed(bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert refused.value.status == 413
