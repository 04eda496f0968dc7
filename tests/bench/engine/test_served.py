"""What a server streams, as figures; and what is no whole stream."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from bench.engine.cells import Answer, WrongAnswer
from bench.engine.served import Pieces, read


def said(index: int, text: str = "word", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": text, "finish_reason": None}], **more}


def usage(completion: int, prompt: int = 9) -> dict[str, Any]:
    return {"usage": {"completion_tokens": completion, "prompt_tokens": prompt}}


def stream(events: Sequence[dict[str, Any]], end: str = "data: [DONE]\n\n") -> Pieces:
    """One event each second, the first at 1."""
    pieces = [(float(at), f"data: {json.dumps(event)}\n\n".encode()) for at, event in enumerate(events, 1)]
    return [*pieces, (len(events) + 1.0, end.encode())]


def test_times_and_counts_of_a_stream_with_one_usage() -> None:
    events = [said(1, ""), said(1), said(0), said(1), {"choices": [], **usage(64)}]
    assert read([stream(events)], 2) == Answer(6.0, 2.0, 3.0, 64, 9)


def test_a_usage_beside_a_choice_counts_that_choice() -> None:
    events = [said(0), said(1), said(1, "", **usage(3)), said(0, "", **usage(4))]
    assert read([stream(events)], 2) == Answer(5.0, 1.0, 2.0, 7, 9)


def test_streams_beside_each_other_add_up() -> None:
    one, other = [said(0), {"choices": [], **usage(5)}], [said(0, ""), said(0), {"choices": [], **usage(6, 7)}]
    assert read([stream(one), stream(other)], 1) == Answer(4.0, 1.0, 2.0, 11, 16)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_where_the_bytes_are_cut_makes_no_difference(size: int) -> None:
    whole = [said(0), said(1), {"choices": [], **usage(2)}]
    text = b"".join(data for _, data in stream(whole))
    cut = [(2.0, text[at : at + size]) for at in range(0, len(text), size)]
    assert read([cut], 2) == Answer(2.0, 2.0, 2.0, 2, 9)


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        (stream([said(0)]), "1 of 2 choices"),
        (stream([said(0), said(1)], end=""), "did not come"),
        (stream([said(0), {"error": {"message": "no room"}}]), "no room"),
    ],
)
def test_what_is_no_whole_stream_is_no_answer(pieces: Pieces, says: str) -> None:
    with pytest.raises(WrongAnswer, match=says):
        read([pieces], 2)
