"""Pieces in the wire's bytes: deltas, messages, and reported tokens; whatever is streamed folds to the whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.messages import Logprobs
from engine.server.answering.best_of import the_best
from engine.server.answering.choice_text import ChoiceText
from engine.server.answering.logprobs import Spelling
from engine.server.answering.output import Piece, ReportedToken
from engine.server.answering.writer import Writer
from engine.server.asking.output_options import OutputOptions
from engine.text.detokenizer import TokenBytes
from engine.text.parsers.parts import Content, Part, Reasoning, ToolArguments, ToolStart
from nproxy.openai.dialect import Dialect
from nproxy.openai.usage import Usage
from nproxy.openai.wire import Wire

TABLE = TokenBytes([b"a", b"b"])
USAGE = Usage(1, 2)


def writer(dialect: Dialect = Dialect.CHAT, prompts: tuple[tuple[int, ...], ...] = ((5, 6),), **options: Any) -> Writer:
    return Writer(Wire(dialect, "id", 1, "m"), Spelling(TABLE, OutputOptions(**options)), prompts, 1)


def chunk(written: bytes) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(written.removeprefix(b"data: "))
    return parsed


def choice(written: bytes) -> dict[str, Any]:
    (only,) = chunk(written)["choices"]
    assert isinstance(only, dict)
    return only


def test_E7_a_stream_ends_with_its_usage_only_where_that_is_asked_for() -> None:
    asked = Writer(Wire(Dialect.CHAT, "id", 1, "m", include_usage=True), Spelling(TABLE, OutputOptions()), ((5, 6),), 1)
    tail, _, done = asked.end(USAGE).partition(b"\n\n")
    assert (chunk(tail)["choices"], chunk(tail)["usage"]["total_tokens"]) == ([], 3)
    assert writer().end(USAGE) == done == b"data: [DONE]\n\n"


def test_E12_a_chunk_of_plain_text_carries_the_usage_so_far() -> None:
    written = chunk(writer().chunk(Piece(0, (Content("x"),), None), USAGE))
    assert (written["choices"][0]["delta"], written["usage"]["total_tokens"]) == ({"content": "x"}, 3)


CALL = (ToolStart(0, "call-1", "f"), ToolArguments(0, '{"x"'))
REST = (ToolArguments(0, ": 1}"), ToolStart(1, "call-2", "g"), ToolArguments(1, "{}"))


@pytest.mark.parametrize(
    ("parts", "finish", "delta"),
    [
        ((Content("x"),), None, {"content": "x"}),
        ((Content("x"), Content("y")), "stop", {"content": "xy"}),
        ((), "stop", {}),
        ((Reasoning("r"),), None, {"reasoning_content": "r"}),
        ((Reasoning("r"), Content("x")), None, {"reasoning_content": "r", "content": "x"}),
        (
            CALL,
            None,
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "call-1",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"x"'},
                    }
                ]
            },
        ),
        (
            REST,
            "tool_calls",
            {
                "tool_calls": [
                    {"index": 0, "function": {"arguments": ": 1}"}},
                    {"index": 1, "id": "call-2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                ]
            },
        ),
    ],
)
def test_D_G_H_deltas(parts: tuple[Part, ...], finish: str | None, delta: dict[str, Any]) -> None:
    written = choice(writer().chunk(Piece(0, parts, finish)))
    assert written == {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def test_G_messages() -> None:
    called = ChoiceText([Reasoning("r"), *CALL, *REST], finish="tool_calls")
    spoken = ChoiceText([Content("x"), Content("y")], finish="stop")
    silent = ChoiceText([], finish="length")
    body = json.loads(
        Writer(Wire(Dialect.CHAT, "id", 1, "m"), Spelling(TABLE, OutputOptions()), [(1,)], 3).answer(
            [called, spoken, silent], USAGE, [None]
        )
    )
    assert [one["message"] for one in body["choices"]] == [
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "r",
            "tool_calls": [
                {"id": "call-1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
                {"id": "call-2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
        },
        {"role": "assistant", "content": "xy"},
        {"role": "assistant", "content": ""},
    ]
    assert [one["finish_reason"] for one in body["choices"]] == ["tool_calls", "stop", "length"]


def scored(token: int, logprob: float = -1.0) -> ReportedToken:
    return ReportedToken(token, Logprobs(logprob, 1), 0)


@pytest.mark.parametrize("parts", [(Content("a"),), (), CALL, (Reasoning("r"),)])
def test_F1_log_probabilities_beside_whatever_is_said(parts: tuple[Part, ...]) -> None:
    asked = choice(writer(logprobs=0).chunk(Piece(0, parts, "stop", (scored(0),))))
    assert [entry["token"] for entry in asked["logprobs"]["content"]] == ["a"]
    unasked = choice(writer().chunk(Piece(0, parts, "stop", (scored(0),))))
    assert unasked["logprobs"] is None


def test_token_ids_in_a_chats_stream_and_in_its_answer() -> None:
    asked = writer(ids=True)
    first, second = (chunk(asked.chunk(Piece(0, (Content("x"),), None, (scored(token),)))) for token in (0, 1))
    assert (first["prompt_token_ids"], first["choices"][0]["token_ids"]) == ([5, 6], [0])
    assert "prompt_token_ids" not in second
    assert second["choices"][0]["token_ids"] == [1]
    whole = json.loads(asked.answer([ChoiceText([], [scored(0), scored(1)], "stop")], USAGE, [None]))
    assert (whole["prompt_token_ids"], whole["choices"][0]["token_ids"]) == ([5, 6], [0, 1])


def test_a_prompts_ids_come_once_in_a_chats_stream_and_once_with_each_choice_of_a_completion() -> None:
    for dialect, expected in ((Dialect.CHAT, [True, False, False]), (Dialect.COMPLETIONS, [True, True, False])):
        asked = Writer(Wire(dialect, "id", 1, "m"), Spelling(TABLE, OutputOptions(ids=True)), [(5, 6)], 2)
        chunks = [chunk(asked.chunk(Piece(index, (Content("x"),), None, (scored(0),)))) for index in (1, 0, 1)]
        places = chunks if dialect is Dialect.CHAT else [one["choices"][0] for one in chunks]
        assert ["prompt_token_ids" in place for place in places] == expected


def test_token_ids_of_completions_stand_in_each_choice_without_the_echoed() -> None:
    asked = writer(Dialect.COMPLETIONS, prompts=((5,), (6,)), ids=True)
    reported = (ReportedToken(5, None, 0, echoed=True), scored(0))
    first = choice(asked.chunk(Piece(1, (Content("x"),), None, reported)))
    assert (first["prompt_token_ids"], first["token_ids"], first["text"]) == ([6], [0], "x")
    whole = json.loads(asked.answer([ChoiceText([], list(reported), "stop")] * 2, USAGE, [None, None]))
    assert [one["prompt_token_ids"] for one in whole["choices"]] == [[5], [6]]
    assert "prompt_token_ids" not in whole


@pytest.mark.parametrize("dialect", list(Dialect))
def test_where_a_prompts_log_probabilities_stand(dialect: Dialect) -> None:
    asked = writer(dialect, prompts=((0, 1),), prompt_logprobs=0)
    whole = json.loads(asked.answer([ChoiceText([], [], "stop")], USAGE, [(None, Logprobs(-1.0, 4))]))
    place = whole if dialect is Dialect.CHAT else whole["choices"][0]
    assert place["prompt_logprobs"] == [None, {"1": {"logprob": -1.0, "rank": 4, "decoded_token": "b"}}]


def test_J9_the_likeliest_are_shown_best_first() -> None:
    unlikely, likely = ChoiceText(reported=[scored(0, -3.0)]), ChoiceText(reported=[scored(0, -0.25), scored(1, -0.5)])
    equal, silent = ChoiceText(reported=[scored(1, -0.375)]), ChoiceText()
    assert the_best([unlikely, likely, equal, silent], 4, 2) == [likely, equal]
    assert the_best([unlikely, likely, silent, equal], 2, 1) == [likely, equal], "each prompt has its own best"
    echoed = ChoiceText(reported=[ReportedToken(0, Logprobs(-9.0, 1), 0, echoed=True), scored(1, -0.1)])
    assert the_best([likely, echoed], 2, 1) == [echoed], "the prompt is the same for all"


def test_the_logprobs_of_an_echoed_prompt_are_spelled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    spelled: list[int] = []
    plain = TokenBytes.spelling

    def noted(table: TokenBytes, token: int) -> bytes:
        spelled.append(token)
        return plain(table, token)

    monkeypatch.setattr(TokenBytes, "spelling", noted)
    wire, spelling = Wire(Dialect.COMPLETIONS, "id", 1, "m"), Spelling(TABLE, OutputOptions(logprobs=0))
    of_prompts = [[ReportedToken(token, Logprobs(-2.0, 1), 0, echoed=True)] * 50 for token in (0, 1)]
    choices = [ChoiceText(reported=[*of_prompts[index // 8], scored(1)]) for index in range(16)]
    whole = json.loads(Writer(wire, spelling, ((0,) * 50, (1,) * 50), 8).answer(choices, USAGE, [None, None]))
    assert len(spelled) == 2 * (2 * 50 + 16)  # as a token, and among the likeliest
    for index, one in enumerate(whole["choices"]):
        assert one["logprobs"]["tokens"] == ["ab"[index // 8]] * 50 + ["b"]
        assert one["logprobs"]["token_logprobs"] == [-2.0] * 50 + [one["logprobs"]["token_logprobs"][-1]]
        assert {len(column) for column in one["logprobs"].values()} == {51}
