"""Turns the bytes of a streamed answer into the events of its leg."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from nproxy.choices.events import LegChunk, LegChunks
from nproxy.openai.chunks import DONE_DATA
from nproxy.openai.sse import BETWEEN, SSEDecoder, SSEEvent

Chunks: TypeAlias = Sequence[LegChunk | LegChunks]


def read_segment(leg: int, decoder: SSEDecoder, segment: bytes) -> Chunks:
    """Return the events that a segment completes; several usual ones together. Raises SSEError."""
    usual = decoder.usual(segment)
    if usual is None:
        return one_by_one(leg, decoder.feed(segment))
    data, count = usual
    if count == 1:
        return (LegChunk(leg, data),)
    if DONE_DATA not in data:
        return (LegChunks(leg, data, count),)
    before, _, last = data.rpartition(BETWEEN)
    if last != DONE_DATA or count == 2 or DONE_DATA in before:
        return split_chunks(leg, data)
    return LegChunks(leg, before, count - 1), LegChunk(leg, DONE_DATA)


def split_chunks(leg: int, data: bytes) -> list[LegChunk]:
    """Return a LegChunk for each of several events whose data is joined by `BETWEEN`."""
    return [LegChunk(leg, one) for one in data.split(BETWEEN)]


def one_by_one(leg: int, events: Sequence[SSEEvent]) -> Chunks:
    """Return a LegChunk for each event."""
    return [LegChunk(leg, data, name) for data, name in events]
