"""Group P: however the upstream writes its bytes and the network cuts them, the client reads the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.scene import SEED, Scene
from tests.conformance.settings import everywhere
from tests.fakes import quirks
from tests.fakes.behaviour import said

BROKE = b'{"error": {"message": "it broke", "type": "server_error"}}'


def multi_line(data: bytes) -> bytes:
    """The event's JSON in several data lines."""
    return b"data: " + data.replace(b', "', b',\ndata:  "') + b"\n\n"


def with_fields(data: bytes) -> bytes:
    return b"id: 7\nevent: message\nretry: 1\ndata: " + data + b"\nid: 8\n\n"


def named(data: bytes) -> bytes:
    return b"event: delta\ndata: " + data + b"\n\n"


ROWS: list[dict[str, Any]] = [
    {"id": "P1-comments", "quirk": quirks.comments},
    {"id": "P1-empty-comments", "frame": lambda data: b":\n\n:x\ndata: " + data + b"\n:y\n\n"},
    {"id": "P2-crlf", "newline": b"\r\n"},
    {"id": "P2-cr", "newline": b"\r"},
    {"id": "P2-crlf-byte-by-byte", "newline": b"\r\n", "segment": 1},
    {"id": "P2-cr-byte-by-byte", "newline": b"\r", "segment": 1},
    {"id": "P2-crlf-between-lines-of-data", "newline": b"\r\n", "frame": multi_line, "segment": 1},
    {"id": "P3-lines-of-data", "frame": multi_line},
    {"id": "P3-lines-of-data-cut", "frame": multi_line, "segment": 3},
    {"id": "P4-bom", "preamble": b"\xef\xbb\xbf", "role": False},
    {"id": "P4-bom-cut", "preamble": b"\xef\xbb\xbf", "role": False, "segment": 1},
    {"id": "P5-characters-cut", "segment": 1},
    {"id": "P6-every-byte", "segment": 1},
    {"id": "P6-seven-bytes", "segment": 7},
    {"id": "P7-no-space", "frame": lambda data: b"data:" + data + b"\n\n"},
    {"id": "P7-two-spaces", "frame": lambda data: b"data:  " + data + b"\n\n"},
    {"id": "P8-other-fields", "frame": with_fields},
    {"id": "P8-named", "frame": named},
    {"id": "P11-one-segment", "one_write": True},
    {"id": "P11-one-segment-of-odd-ones", "one_write": True, "frame": named},
    {"id": "R5-space-before-the-end", "frame": lambda data: b"data: " + data + b" \n\n"},
]


@everywhere
@pytest.mark.parametrize("asked", [{}, {"stream_options": {"include_usage": True}}], ids=["", "usage"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["id"]))
async def test_P1_P2_P3_P4_P5_P6_P7_P8_P11_the_client_reads_the_same(
    scene: Scene, row: dict[str, Any], asked: dict[str, Any]
) -> None:
    """The reader refuses the upstream's comments, fields and line ends."""
    pieces = [" é", "漢字", "😀", '"', "\\", "\n", "data: x"]
    does = {key: value for key, value in row.items() if key != "id"}
    scene.does(pieces=lambda seed: [said(seed), *pieces], **does)
    answer = await scene.stream(**asked)
    assert answer.texts == {index: said(SEED + index) + "".join(pieces) for index in range(scene.n)}
    assert answer.finishes == scene.stopped
    assert answer.done
    if asked:
        assert answer.usage is not None
        assert answer.usage["completion_tokens"] == 8 * scene.n


@everywhere
@pytest.mark.parametrize("end", [b"\n", b""])
async def test_P9_the_last_event_needs_no_blank_line(scene: Scene, end: bytes) -> None:
    """The last event is the finish of the last choice; no `[DONE]` follows."""

    def without_end(chunks: list[Any]) -> list[Any]:
        *others, last = chunks
        return [*others, b"data: " + quirks.dumped(last) + end]

    scene.does(quirk=without_end, usage=False, done=False)
    answer = await scene.stream()
    assert answer.texts == scene.said
    assert answer.finishes == scene.stopped


@everywhere
@pytest.mark.parametrize("frame", [b"event: error\ndata: %b\n\n", b"event: error\ndata: it broke\n\n", b"data: %b\n\n"])
async def test_P13_an_event_named_error(scene: Scene, frame: bytes) -> None:
    event = frame % BROKE if b"%b" in frame else frame
    scene.choice_does(1, quirk=lambda chunks: [*chunks[:2], event], done=False)
    answer = await scene.stream()
    assert answer.error is not None
    assert answer.error["message"] == "it broke"


@everywhere
async def test_P15_llamacpps_error_field(scene: Scene) -> None:
    scene.does(quirk=lambda chunks: [*chunks[:2], b'error: {"code":500,"message":"it broke"}\n\n'], done=False)
    answer = await scene.stream()
    assert answer.error is not None
    assert answer.error["message"] == "it broke"


@everywhere
async def test_P14_no_ping_before_the_head(scene: Scene) -> None:
    await scene.start(config={"stream": {"headers_after_seconds": None, "ping_seconds": 0.02}})
    scene.does(pings=5, ping_pause=0.02)
    answer = await scene.stream()
    assert answer.pings == 0
    scene.does(pause=0.05)
    assert (await scene.stream()).pings >= 2, "silence in a stream that has begun"
