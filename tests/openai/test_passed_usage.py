"""Token counts in answers that nobody parses: found wherever the bytes are cut, and only where they are counts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nproxy.openai.passed_usage import LONGEST, PassedUsage

RESPONSE = {
    "object": "response",
    "output": [{"content": [{"type": "output_text", "text": 'so: "usage": {"output_tokens": 99}'}]}],
    "usage": {
        "input_tokens": 36,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens": 87,
        "output_tokens_details": {"reasoning_tokens": 70},
        "total_tokens": 123,
    },
    "metadata": {"usage": "none"},
}
STREAM = (
    'event: message_start\ndata: {"message":{"usage":{"input_tokens":25,"output_tokens":1}}}\n\n'
    'event: message_delta\ndata: {"usage": {"output_tokens": 15}}\n\n'
)


def found(*pieces: bytes) -> tuple[bool, int, int]:
    usage = PassedUsage()
    for piece in pieces:
        usage.feed(piece)
    return usage.found, usage.prompt, usage.completion


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        (RESPONSE, (36, 87)),
        (STREAM, (25, 15)),
        ({"object": "list", "usage": {"prompt_tokens": 8, "total_tokens": 8}}, (8, 0)),
        ({"results": [], "usage": {"total_tokens": 56}}, (56, 0)),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}}, (3, 0)),
    ],
    ids=["a response", "a stream of messages", "embeddings", "a reranking", "nothing written"],
)
@given(data=st.data())
def test_they_are_found_however_the_answer_is_cut(
    answer: str | dict[str, Any], counts: tuple[int, int], data: st.DataObject
) -> None:
    text = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=9)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert found(*pieces) == (True, *counts)


@pytest.mark.parametrize(
    "answer",
    [
        b'{"text": "\\"usage\\": {\\"total_tokens\\": 5}"}',
        b'{"usage": null}',
        b'{"usage": {"seconds": 7, "total_tokens": 1e9, "input_tokens": 9007199254740993, "output_tokens": -1}}',
        b'{"total_tokens": 5}',
        b'{"usage": {"x": "' + b"x" * LONGEST,
    ],
    ids=["in a text", "null", "no counts", "elsewhere", "without an end"],
)
def test_other_things_are_not_counted(answer: bytes) -> None:
    assert found(answer, answer) == (False, 0, 0)


def test_events_are_counted() -> None:
    usage = PassedUsage()
    for piece in (b"data: 1\n\n", b"data: 2\n\ndata: 3\n\nda", b"ta: 4", b"\n\n", b"data: 5\r\n\r\n"):
        usage.feed(piece)
    assert (usage.found, usage.events) == (False, 5)


def test_little_is_kept_of_what_has_passed() -> None:
    usage = PassedUsage()
    for _ in range(100):
        usage.feed(b'{"usage": {' + b"x" * 100_000)
        assert len(usage._rest) <= LONGEST
