"""Pieces become items and events, and the whole response is their fold."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest

from engine.messages import Logprobs
from engine.server.answering.choice_text import ChoiceText
from engine.server.answering.logprobs import Spelling
from engine.server.answering.output import Piece, ReportedToken
from engine.server.asking.output_options import OutputOptions
from engine.server.endpoints.responses.output import Items
from engine.server.endpoints.responses.writer import ResponseWriter
from engine.text.parsers.parts import Content, Part, Reasoning, ToolArguments, ToolStart
from nproxy.openai.errors import ApiError
from nproxy.openai.usage import Usage
from tests.engine.server.letters import LETTERS

USAGE = Usage(10, 5, {"cached_tokens": 4}, {"reasoning_tokens": 2})


class Scene:
    """A writer, and what it has kept."""

    def __init__(self, output_options: OutputOptions | None = None) -> None:
        numbers = itertools.count(1)
        self.kept: list[dict[str, Any]] = []
        items = Items(lambda prefix: f"{prefix}_{next(numbers)}")
        spelling = Spelling(LETTERS.table, output_options or OutputOptions())
        self.writer = ResponseWriter({"id": "resp_1", "store": True}, items, spelling, self.kept.append)

    def events(self, *pieces: Piece) -> list[dict[str, Any]]:
        data = self.writer.prelude() + b"".join(map(self.writer.chunk, pieces)) + self.writer.end(USAGE)
        return read(data)

    def whole(self, *pieces: Piece) -> dict[str, Any]:
        said = ChoiceText()
        for piece in pieces:
            said.add(piece)
        answer: dict[str, Any] = json.loads(self.writer.answer([said], USAGE, [None]))
        return answer


def read(data: bytes) -> list[dict[str, Any]]:
    events = []
    for number, frame in enumerate(filter(None, data.split(b"\n\n"))):
        named, _, rest = frame.partition(b"\n")
        event = json.loads(rest.removeprefix(b"data: "))
        assert named == b"event: " + event["type"].encode()
        assert event.pop("sequence_number") == number
        events.append(event)
    return events


def piece(*parts: Part, finish: str | None = None, reported: tuple[ReportedToken, ...] = ()) -> Piece:
    return Piece(0, parts, finish, reported)


ALL = (
    piece(Reasoning("H")),
    piece(Reasoning("m."), Content("It")),
    piece(Content(" is.")),
    piece(ToolStart(0, "call_a", "add"), ToolArguments(0, '{"x"')),
    piece(ToolArguments(0, ": 1}"), ToolStart(1, "call_b", "sub")),
    piece(ToolArguments(1, "{}"), finish="tool_calls"),
)


def test_the_events_of_a_message() -> None:
    events = Scene().events(piece(Content("Hel")), piece(Content("lo")), piece(finish="stop"))
    where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant"}
    begun = {**item, "status": "in_progress", "content": []}
    done = {**item, "status": "completed", "content": [part]}
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0]["response"]["status"] == "in_progress"
    assert events[2:-1] == [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": begun,
        },
        {"type": "response.content_part.added", **where, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **where, "delta": "Hel", "logprobs": []},
        {"type": "response.output_text.delta", **where, "delta": "lo", "logprobs": []},
        {"type": "response.output_text.done", **where, "text": "Hello", "logprobs": []},
        {"type": "response.content_part.done", **where, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
    ]
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"] == [done]


def test_reasoning_words_and_calls_are_items_in_their_order() -> None:
    events = Scene().events(*ALL)
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert output[1]["content"][0]["text"] == "It is."
    assert [(item["call_id"], item["name"], item["arguments"]) for item in output[2:]] == [
        ("call_a", "add", '{"x": 1}'),
        ("call_b", "sub", "{}"),
    ]
    added = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == output
    assert added == [item["id"] for item in output] == ["rs_1", "msg_2", "fc_3", "fc_4"]


def test_a_stream_folds_to_its_own_response() -> None:
    """Each item's deltas, joined, are its text at its end."""
    texts: dict[int, str] = {}
    for event in Scene().events(*ALL):
        if event["type"].endswith(".delta"):
            texts[event["output_index"]] = texts.get(event["output_index"], "") + event["delta"]
        elif event["type"].rpartition(".")[2] == "done" and ("text" in event or "arguments" in event):
            assert texts[event["output_index"]] == event.get("text", event.get("arguments"))
    assert texts == {0: "Hm.", 1: "It is.", 2: '{"x": 1}', 3: "{}"}


def test_the_whole_answer_is_the_streams_and_is_kept_once() -> None:
    whole, stream = Scene(), Scene()
    last = stream.events(*ALL)[-1]["response"]
    given = whole.whole(*ALL)
    for response in (given, last):
        response.pop("completed_at")
    assert given == last
    assert len(whole.kept) == len(stream.kept) == 1
    assert given["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 15,
    }


def test_an_answer_that_was_cut_is_incomplete() -> None:
    last = Scene().events(piece(Content("a")), piece(Content("b"), finish="length"))[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["output"][0]["status"] == last["response"]["status"] == "incomplete"


def test_an_answer_without_a_word_is_an_empty_message() -> None:
    [item] = Scene().whole(piece(finish="stop"))["output"]
    assert item["content"][0]["text"] == ""


@pytest.mark.parametrize(
    ("status", "code"),
    [(500, "server_error"), (503, "server_error"), (429, "rate_limit_exceeded"), (400, "invalid_prompt")],
)
def test_a_failure_is_the_streams_last_event_and_is_not_kept(status: int, code: str) -> None:
    scene = Scene()
    scene.writer.prelude()
    scene.writer.chunk(piece(Content("a")))
    data = scene.writer.failure(ApiError(status, "It broke.", type="server_error"), b"")
    failed = json.loads(data.partition(b"\ndata: ")[2])
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": code, "message": "It broke."}
    assert failed["response"]["completed_at"] is None
    assert scene.kept == []


def test_a_response_that_fails_before_anything_was_sent_has_its_beginning() -> None:
    scene = Scene()
    data = scene.writer.failure(ApiError(503, "It broke.", type="server_error"), scene.writer.prelude())
    events = [json.loads(line.removeprefix(b"data: ")) for line in data.splitlines() if line.startswith(b"data: ")]
    assert [(event["sequence_number"], event["type"]) for event in events] == [
        (0, "response.created"),
        (1, "response.in_progress"),
        (2, "response.failed"),
    ]


def test_only_what_is_complete_has_a_time_of_its_end() -> None:
    before = int(time.time())
    events = Scene().events(piece(Content("a"), finish="stop"))
    assert events[0]["response"]["completed_at"] is None
    assert before <= events[-1]["response"]["completed_at"] <= time.time()
    assert before <= Scene().whole(piece(Content("a"), finish="stop"))["completed_at"] <= time.time()
    assert Scene().whole(piece(Content("a"), finish="length"))["completed_at"] is None


def test_log_probabilities_stand_with_the_words_that_they_are_of() -> None:
    def reported(token: int, *, said: bool = True) -> ReportedToken:
        return ReportedToken(token, Logprobs(-token, 1, ((token, -float(token)),)), 0, said=said)

    pieces = (
        piece(Reasoning("H"), reported=(reported(1, said=False),)),
        piece(Reasoning("i"), Content("a"), reported=(reported(6, said=False), reported(2), reported(3))),
        piece(Content("b"), reported=(reported(4),)),
        piece(finish="stop", reported=(reported(5),)),
    )
    events = Scene(OutputOptions(logprobs=1)).events(*pieces)
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert [[one["logprob"] for one in logprobs] for logprobs in deltas] == [[-2, -3], [-4]]
    for response in (events[-1]["response"], Scene(OutputOptions(logprobs=1)).whole(*pieces)):
        logprobs = response["output"][1]["content"][0]["logprobs"]
        assert [one["logprob"] for one in logprobs] == [-2, -3, -4, -5]
        assert logprobs[0]["top_logprobs"][0].keys() == {"token", "logprob", "bytes"}
