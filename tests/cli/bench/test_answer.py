"""Answers as they come: these bytes at these times go in, this record comes out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nproxy.cli.bench.answer import Answer, Record, Spoken
from nproxy.openai.dialect import Dialect

DONE = b"data: [DONE]\n\n"


def says(index: int, text: str = "", finish: str | None = None, **more: Any) -> bytes:
    return chunk([{"index": index, "delta": {"content": text}, "finish_reason": finish}], **more)


def chunk(choices: list[Any], **more: Any) -> bytes:
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


def used(completion: int) -> dict[str, int]:
    return {"prompt_tokens": 5, "completion_tokens": completion, "total_tokens": 5 + completion}


def heard(wanted: int, *told: tuple[float, bytes], due: float = 100.0, sent: float = 100.5) -> Record:
    """A stream of which these bytes come so long after it was due; the connection ends a second behind the last."""
    answer = Answer(Dialect.CHAT, wanted)
    for after, data in told:
        answer.feed(data, due + after)
    return answer.record(due, sent, due + (told[-1][0] if told else 0.0) + 1.0)


TWO = (
    (1.0, chunk([{"index": 0, "delta": {"role": "assistant", "content": ""}}])),
    (2.0, says(1, "a")),
    (3.0, says(0, "b")),
    (3.5, says(1, "c")),
    (4.0, says(1, finish="stop")),
    (6.0, says(0, "d", "length")),
    (6.5, chunk([], usage=used(9))),
    (7.0, DONE),
)


def test_two_choices() -> None:
    record = heard(2, *TWO)
    assert record.failure is None
    assert (record.late, record.seconds, record.width) == (0.5, 7.0, 2)
    assert list(record.choices) == [
        Spoken(3.0, 6.0, [3.0], "length", 6.0),
        Spoken(2.0, 3.5, [1.5], "stop", 4.0),
    ]
    assert record.usage is not None
    assert (record.usage.prompt, record.usage.completion, record.texts) == (5, 9, 4)


def test_a_role_is_no_token() -> None:
    assert heard(2, *TWO).choices[0].first == 3.0


def test_reasoning_and_tool_calls_are_tokens() -> None:
    for delta in ({"reasoning_content": "x"}, {"tool_calls": [{"index": 0}]}):
        record = heard(1, (1.0, chunk([{"index": 0, "delta": delta}])), (2.0, says(0, finish="stop")), (3.0, DONE))
        assert record.choices[0].first == 1.0


@given(st.data())
def test_the_same_bytes_in_any_split_are_the_same_choices(data: st.DataObject) -> None:
    whole = b"".join(piece for _, piece in TWO)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    record = heard(2, *((float(at), piece) for at, piece in enumerate(pieces)))
    assert record.failure is None
    assert [(choice.texts, choice.finish) for choice in record.choices] == [(2, "length"), (2, "stop")]
    assert record.usage is not None and record.usage.completion == 9


def test_it_ends_with_done_whenever_the_connection_does() -> None:
    assert heard(1, (1.0, says(0, "a", "stop")), (2.0, DONE)).seconds == 2.0
    assert heard(1, (1.0, says(0, "a", "stop"))).seconds == 2.0


def test_without_done_the_choices_ends_say_that_it_is_whole() -> None:
    assert heard(1, (1.0, says(0, "a", "stop"))).failure is None
    assert heard(1, (1.0, says(0, "a")), (2.0, DONE)).failure is None


def why(record: Record) -> tuple[str, str]:
    assert record.failure is not None
    assert (record.choices, record.usage, record.width) == ((), None, 0)
    return record.failure


def test_fewer_choices_than_asked_for_are_a_failure() -> None:
    assert why(heard(3, *TWO)) == ("short", "2 of 3 choices came")


def test_a_choice_that_nproxy_could_not_get_is_none() -> None:
    told = ((1.0, says(0, "a", "stop")), (1.0, says(1, "", "error")), (2.0, DONE))
    assert why(heard(2, *told)) == ("short", "1 of 2 choices came")


def test_choices_that_nobody_asked_for_stand_in_for_none() -> None:
    told = ((1.0, says(0, "a", "stop")), (1.0, says(2, "a", "stop")), (2.0, DONE))
    assert why(heard(2, *told)) == ("short", "1 of 2 choices came")


@pytest.mark.parametrize("told", [(), ((1.0, says(0, "a")),), ((1.0, says(0, "a", "stop")), (2.0, says(1, "b")))])
def test_a_stream_that_breaks_off(told: tuple[tuple[float, bytes], ...]) -> None:
    assert why(heard(2, *told)) == ("cut", "the stream ended before it was complete")


@pytest.mark.parametrize(
    "error",
    [
        b'data: {"error": {"message": "out\\nof luck", "code": 503}}\n\n',
        b'event: error\ndata: {"message": "out of luck", "code": 503}\n\n',
        b'error: {"message": "out of luck", "code": 503}\n\n',
    ],
)
def test_an_error_in_the_stream(error: bytes) -> None:
    assert why(heard(1, (1.0, says(0, "a")), (2.0, error))) == ("503 in the stream", "out of luck")


def test_what_is_no_chunk() -> None:
    kind, words = why(heard(1, (1.0, b"data: {\n\n")))
    assert (kind, words) == ("malformed", "a chunk cannot be read: it is not JSON")


def test_the_first_reason_holds() -> None:
    answer = Answer(Dialect.CHAT, 1)
    answer.refuse(429, "application/json", b'{"error": {"message": "too many"}}')
    answer.fail("cut", "later")
    assert why(answer.record(0, 0, 1)) == ("429", "too many")


def test_behind_done_nothing_fails() -> None:
    answer = Answer(Dialect.CHAT, 1)
    answer.feed(says(0, "a", "stop") + DONE, 1.0)
    answer.fail("cut", "later")
    assert answer.record(0, 0, 2).failure is None


def test_behind_done_nothing_counts() -> None:
    record = heard(1, (1.0, says(0, "a", "stop")), (2.0, DONE), (3.0, says(0, "b", "length")))
    assert list(record.choices) == [Spoken(1.0, 1.0, [], "stop", 1.0)]
    assert record.seconds == 2.0


def whole(answer: Any, wanted: int = 2) -> Record:
    it = Answer(Dialect.CHAT, wanted)
    it.whole(json.dumps(answer).encode(), 3.0)
    return it.record(1.0, 1.0, 4.0)


def message(index: int) -> Any:
    return {"index": index, "message": {"content": "a"}, "finish_reason": "stop"}


def test_an_answer_in_json_form() -> None:
    record = whole({"choices": [message(0), message(1)], "usage": used(9)})
    assert (record.failure, record.seconds, record.width, record.choices) == (None, 2.0, 2, ())
    assert record.usage is not None and record.usage.completion == 9


def test_what_is_no_answer_in_json_form() -> None:
    assert why(whole({"choices": [message(0)]})) == ("short", "1 of 2 choices came")
    assert why(whole({"error": {"message": "no", "code": 500}})) == ("500", "no")
    assert why(whole([]))[0] == "malformed"


def test_usage_told_for_each_choice_is_added_up() -> None:
    told = (
        (1.0, says(0, "a", "stop", usage=used(3))),
        (2.0, says(1, "b", "stop", usage=used(4))),
        (3.0, DONE),
    )
    usage = heard(2, *told).usage
    assert usage is not None and (usage.prompt, usage.completion) == (5, 7)


def test_legacy_completions() -> None:
    answer = Answer(Dialect.COMPLETIONS, 1)
    answer.feed(b'data: {"choices": [{"text": "a"}]}\n\n', 1.0)
    answer.feed(b'data: {"choices": [{"text": "b", "finish_reason": "stop"}]}\n\n', 2.0)
    assert list(answer.record(0, 0, 3).choices) == [Spoken(1.0, 2.0, [1.0], "stop", 2.0)]
