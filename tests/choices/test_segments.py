"""What the segments of a stream become."""

from __future__ import annotations

import pytest

from nproxy.choices.events import LegChunk, LegChunks
from nproxy.choices.segments import Chunks, read_segment
from nproxy.openai.sse import SSEDecoder

X, Y, DONE = LegChunk(3, b"x"), LegChunk(3, b"y"), LegChunk(3, b"[DONE]")


@pytest.mark.parametrize(
    ("segment", "chunks"),
    [
        (b"", []),
        (b"data: x\n\n", [X]),
        (b"data: x\n\ndata: y\n\n", [LegChunks(3, b"x\n\ndata: y", 2)]),
        (b"event: e\ndata: x\n\n", [LegChunk(3, b"x", "e")]),
        (b"data: [DONE]\n\n", [DONE]),
        (b"data: x\n\ndata: [DONE]\n\n", [X, DONE]),
        (b"data: x\n\ndata: y\n\ndata: [DONE]\n\n", [LegChunks(3, b"x\n\ndata: y", 2), DONE]),
        (b"data: [DONE]\n\ndata: x\n\n", [DONE, X]),
        (b"data: x\n\ndata: [DONE]\n\ndata: [DONE]\n\n", [X, DONE, DONE]),
    ],
)
def test_a_segment_becomes_chunks(segment: bytes, chunks: Chunks) -> None:
    assert list(read_segment(3, SSEDecoder(), segment)) == chunks
