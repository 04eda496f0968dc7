"""The strict reader refuses each of these faults."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.reading import Misread, Whole, read_stream

TOP = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
DONE = b"data: [DONE]\n\n"


def chunk(index: int, delta: dict[str, Any], finish: str | None = None, **top: Any) -> bytes:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return frame({**TOP, "choices": [choice], **top})


def frame(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


ROLE = {"role": "assistant", "content": ""}
GOOD = [chunk(0, ROLE), chunk(1, ROLE), chunk(0, {"content": "a"}), chunk(0, {}, "stop"), chunk(1, {}, "stop"), DONE]
COUNTS = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def usage(**changes: int) -> bytes:
    return frame({**TOP, "choices": [], "usage": {**COUNTS, **changes}})


def call(index: int, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, **more}]}


def test_a_good_stream_is_read() -> None:
    reading = read_stream(b": ping\n\n" + b"".join(GOOD), choices=2)
    assert (reading.texts, reading.finishes, reading.pings) == ({0: "a", 1: ""}, {0: "stop", 1: "stop"}, 1)


BAD: dict[str, list[bytes]] = {
    "an index out of range": [*GOOD[:-1], chunk(2, ROLE), DONE],
    "an index that is no number": [GOOD[0].replace(b'"index": 0', b'"index": false'), *GOOD[1:]],
    "a second role": [GOOD[0], *GOOD],
    "no role": GOOD[1:],
    "a null role": [*GOOD[:2], chunk(0, {"role": None, "content": "a"}), *GOOD[3:]],
    "two finishes": [*GOOD[:-1], GOOD[-2], DONE],
    "text behind the finish": [*GOOD[:-1], chunk(1, {"content": "b"}), DONE],
    "an empty finish": [*GOOD[:-2], chunk(1, {}, ""), DONE],
    "no finish": [*GOOD[:-2], DONE],
    "no DONE": GOOD[:-1],
    "DONE twice": [*GOOD, DONE],
    "something behind DONE": [*GOOD, GOOD[0]],
    "something behind an error": [
        *GOOD[:-1],
        frame({"error": dict.fromkeys(("message", "type", "param", "code"))}),
        DONE,
    ],
    "an error without its envelope": [*GOOD[:-1], frame({"error": {"message": "x"}})],
    "another id": [*GOOD[:2], chunk(0, {}, id="d"), *GOOD[3:]],
    "another time": [*GOOD[:2], chunk(0, {}, created=2), *GOOD[3:]],
    "another model": [*GOOD[:2], chunk(0, {}, model="x"), *GOOD[3:]],
    "another object": [frame({**TOP, "object": "text_completion", "choices": []})],
    "no created": [frame({key: value for key, value in TOP.items() if key != "created"} | {"choices": []})],
    "two choices in a chunk": [frame({**TOP, "choices": [{"index": i, "delta": ROLE} for i in (0, 1)]}), *GOOD],
    "usage that was not asked for": [*GOOD[:-1], usage(), DONE],
    "an empty chunk": [frame({**TOP, "choices": []}), *GOOD],
    "an event field": [b"event: x\n" + GOOD[0], *GOOD[1:]],
    "CRLF": [GOOD[0].replace(b"\n\n", b"\r\n\r\n"), *GOOD[1:]],
    "a comment of another kind": [b": hello\n\n", *GOOD],
    "half an event": [*GOOD, b"data: {"],
    "a tool call out of turn": [*GOOD[:2], chunk(0, call(1, id="a")), *GOOD[3:]],
    "a tool call named twice": [*GOOD[:2], chunk(0, call(0, id="a")), chunk(0, call(0, id="a")), *GOOD[3:]],
}

NULL = [part.replace(b"}\n\n", b', "usage": null}\n\n') for part in GOOD[:-1]]

BAD_USAGE: dict[str, list[bytes]] = {
    "no null before": [*GOOD[:-1], usage(), DONE],
    "a chunk behind the usage": [*NULL[:-1], usage(), NULL[-1], DONE],
    "two usages": [*NULL, usage(), usage(), DONE],
    "a total that is no sum": [*NULL, usage(total_tokens=3), DONE],
    "usage before its time": [*NULL[:-1], chunk(1, {}, "stop", usage=COUNTS), usage(), DONE],
}


@pytest.mark.parametrize("fault", BAD)
def test_the_reader_refuses(fault: str) -> None:
    with pytest.raises(Misread):
        read_stream(b"".join(BAD[fault]), choices=2)


@pytest.mark.parametrize("fault", BAD_USAGE)
def test_the_reader_refuses_usage(fault: str) -> None:
    assert read_stream(b"".join([*NULL, usage(), DONE]), choices=2, include_usage=True).usage == COUNTS
    with pytest.raises(Misread):
        read_stream(b"".join(BAD_USAGE[fault]), choices=2, include_usage=True)


def test_totals_must_not_fall() -> None:
    falling = [*NULL[:2], chunk(0, {}, usage=COUNTS), *NULL[3:], usage(completion_tokens=0, total_tokens=1), DONE]
    with pytest.raises(Misread, match="falls"):
        read_stream(b"".join(falling), choices=2, include_usage=True, continuous=True)


CHOICE = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
ANSWER = {"object": "chat.completion", "choices": [CHOICE], "usage": COUNTS}


@pytest.mark.parametrize(
    "change",
    [
        {"choices": [{**CHOICE, "index": 1}]},
        {"choices": []},
        {"choices": [{**CHOICE, "finish_reason": None}]},
        {"choices": [{**CHOICE, "message": {"role": "user", "content": "x"}}]},
        {"usage": {**COUNTS, "total_tokens": 1}},
        {"object": "text_completion"},
        {"error": {}},
    ],
)
def test_the_reader_refuses_whole_answers(change: dict[str, Any]) -> None:
    Whole(json.dumps(ANSWER).encode(), choices=1)
    with pytest.raises(Misread):
        Whole(json.dumps({**ANSWER, **change}).encode(), choices=1)
