"""Groups F to I with the engine behind the gateway: log probabilities, calls, reasoning and ends.

The model's noise is held to a grammar where a call is wanted, and its reasoning ends because `</think>` is made likely.
"""

from __future__ import annotations

import codecs
import json
from typing import Any

import pytest

from tests.conformance.reading import Reading, Whole
from tests.conformance.settings import of_engine
from tests.conformance.with_engine.stage import COMPLETIONS, LETTERS, EngineStage
from tests.fakes import tiny_chat

STREAMED = pytest.mark.parametrize("stream", [False, True])
BOTH = pytest.mark.parametrize("thinks", [False, True])

THOUGHTFUL: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "seed": 10, "n": 2}
"""A prompt and a seed by which neither of two choices ends its reasoning before it began."""

FUNCTION = {
    "name": "f",
    "parameters": {
        "type": "object",
        "properties": {"x": {"enum": [1, 22, 333]}},
        "required": ["x"],
        "additionalProperties": False,
    },
}
TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": FUNCTION}], "max_tokens": 1000}

LIKELY_ENDS = {str(tiny_chat.THOUGHT): 3, str(tiny_chat.END): 10}
"""Reasoning finds its end in some ten tokens, and an answer its own as soon as it may end."""

SOME_CALLS: dict[str, Any] = {"tool_choice": "required", "min_tokens": 200, "logit_bias": LIKELY_ENDS}
"""More than one, as a call takes some fifty to a hundred tokens, and the end behind them."""


def told(answer: Reading | Whole, key: str = "content") -> list[list[Any]]:
    """By choice, all entries of its log probabilities."""
    if isinstance(answer, Whole):
        return [choice["logprobs"][key] for choice in answer.choices]
    given = [[choice["logprobs"] for choice in voice.choices] for voice in answer.voices]
    return [[entry for logprobs in of_one if logprobs for entry in logprobs[key]] for of_one in given]


def calls(answer: Reading | Whole) -> list[list[tuple[str, str]]]:
    """By choice, name and arguments of its calls; every id is there, and no two are the same."""
    if isinstance(answer, Whole):
        listed = [choice["message"].get("tool_calls") or [] for choice in answer.choices]
        assert all(call["type"] == "function" and "index" not in call for of_one in listed for call in of_one)
        named = [[(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in of_one] for of_one in listed]
    else:
        named = [[(c.id, c.name, c.arguments) for c in voice.tools.values()] for voice in answer.voices]
    ids = [id for of_one in named for id, _, _ in of_one]
    assert all(ids) and len(set(ids)) == len(ids)
    return [[(name, arguments) for _, name, arguments in of_one] for of_one in named]


def reasoning(answer: Reading | Whole) -> list[str]:
    """By choice, what it thought."""
    if isinstance(answer, Whole):
        return [choice["message"].get("reasoning_content", "") for choice in answer.choices]
    return ["".join(delta.get("reasoning_content", "") for delta in voice.deltas) for voice in answer.voices]


@of_engine
@STREAMED
async def test_F1_F5_each_entry_rides_with_its_text(stage: EngineStage, stream: bool) -> None:
    """Noise is full of characters that are cut: each chunk shows what the bytes told so far complete."""
    asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 3, "max_tokens": 60, "skip_special_tokens": False}
    answer = await stage.either(stream, **asked)
    for index, content in enumerate(told(answer)):
        assert all(len(entry["top_logprobs"]) == 3 for entry in content)
        spelled = b"".join(bytes(entry["bytes"]) for entry in content)
        assert spelled.decode(errors="replace").removesuffix("<|im_end|>") == answer.texts[index]
        assert any("\\x" in entry["token"] for entry in content)
    if isinstance(answer, Reading):
        for voice in answer.voices:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            for choice in voice.choices[1:]:
                spelled = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
                completed = decoder.decode(spelled, final=choice["finish_reason"] is not None)
                assert completed.removesuffix("<|im_end|>") == choice["delta"].get("content", "")


@of_engine
@BOTH
async def test_F1_G1_H1_entries_keep_up_with_calls_and_reasoning(stage: EngineStage, thinks: bool) -> None:
    fields = {**TOOLS, **SOME_CALLS, "logprobs": True, "top_logprobs": 1}
    fields["chat_template_kwargs"] = {"enable_thinking": thinks}
    whole = await stage.whole(**fields)
    streamed = await stage.stream(**fields, stream_options={"include_usage": True})
    assert told(whole) == told(streamed)
    assert whole.usage is not None and streamed.usage is not None
    counted = sum(map(len, told(whole)))
    assert counted == whole.usage["completion_tokens"] == streamed.usage["completion_tokens"]
    assert reasoning(whole) == reasoning(streamed)
    assert all(calls(whole))
    assert any(reasoning(whole)) or not thinks
    assert calls(whole) == calls(streamed)
    for voice in streamed.voices:
        silent = [choice for choice in voice.choices[1:] if not choice["logprobs"]["content"]]
        assert silent == [], "what is said has its tokens with it"


@of_engine
@STREAMED
async def test_F2_a_refusal_is_told_once(stage: EngineStage, stream: bool) -> None:
    error = await stage.refused(400, logprobs=True, top_logprobs=21, stream=stream)
    assert (error["param"], error["code"]) == ("top_logprobs", "integer_above_max_value")


@of_engine
@STREAMED
async def test_F4_F7_legacy_offsets_run_on_behind_the_echo(stage: EngineStage, stream: bool) -> None:
    fields = {"prompt": "Once", "echo": True, "logprobs": 1, "allowed_token_ids": LETTERS}
    answer = await stage.either(stream, COMPLETIONS, **fields)
    scores, places, tokens = (told(answer, key) for key in ("token_logprobs", "text_offset", "tokens"))
    for index, text in answer.texts.items():
        assert scores[index][0] is None
        assert all(isinstance(score, float) for score in scores[index][1:])
        assert "".join(tokens[index]) == text
        assert places[index] == list(range(len(text)))


@of_engine
@STREAMED
async def test_G1_G3_calls_are_named_once_and_end_the_choice(stage: EngineStage, stream: bool) -> None:
    """The reader refuses calls that do not count from 0, and names that come again."""
    answer = await stage.either(stream, **TOOLS, tool_choice="required", parallel_tool_calls=False)
    for of_one in calls(answer):
        ((name, arguments),) = of_one
        assert name == "f"
        assert json.loads(arguments)["x"] in (1, 22, 333)
    assert answer.finishes == dict.fromkeys(range(3), "tool_calls")
    if isinstance(answer, Whole):
        assert [choice["message"]["content"] for choice in answer.choices] == [None] * 3


@of_engine
@STREAMED
async def test_G5_parallel_calls_keep_their_order(stage: EngineStage, stream: bool) -> None:
    answer = await stage.either(stream, **TOOLS, **SOME_CALLS)
    assert all(len(of_one) > 1 for of_one in calls(answer))


@of_engine
@STREAMED
async def test_G6_one_calls_and_another_speaks(stage: EngineStage, stream: bool) -> None:
    """Whoever may not draw the mark cannot call; the others are made to."""
    mark = str(tiny_chat.THOUGHT + 1)
    own = [{"logit_bias": {mark: -100}}, {"logit_bias": {mark: 100}}, {"logit_bias": {mark: -100}, "max_tokens": 9}]
    strict = [{"type": "function", "function": {**FUNCTION, "strict": True}}]
    answer = await stage.either(stream, tools=strict, choice_params=own, max_tokens=600, parallel_tool_calls=False)
    assert [len(of_one) for of_one in calls(answer)] == [0, 1, 0]
    assert answer.finishes[1] == "tool_calls"
    assert answer.finishes[2] == "length"
    assert answer.texts[0] and not answer.texts[1] and answer.texts[2]


@of_engine
async def test_G7_a_named_function_ends_with_stop(stage: EngineStage) -> None:
    named = {"type": "function", "function": {"name": "f"}}
    answer = await stage.whole(**TOOLS, tool_choice=named)
    assert all(len(of_one) == 1 for of_one in calls(answer))
    assert set(answer.finishes.values()) == {"stop"}


@of_engine
async def test_G8_the_old_form_is_refused(stage: EngineStage) -> None:
    error = await stage.refused(400, functions=[FUNCTION])
    assert error["param"] == "functions"
    assert "tools" in error["message"]


@of_engine
@STREAMED
async def test_H1_H2_reasoning_is_told_and_counted(stage: EngineStage, stream: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    words: dict[str, Any] = {"allowed_token_ids": [*LETTERS, tiny_chat.THOUGHT, tiny_chat.END]}
    asked = {"chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 400, **THOUGHTFUL}
    answer = await stage.either(stream, **words, **asked, **options)
    assert all(reasoning(answer)) and any(answer.texts.values())
    assert "</think>" not in "".join(reasoning(answer))
    assert answer.usage is not None
    counted = answer.usage["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < counted < answer.usage["completion_tokens"]


@of_engine
@STREAMED
async def test_H3_cut_while_reasoning(stage: EngineStage, stream: bool) -> None:
    fields: dict[str, Any] = {
        "chat_template_kwargs": {"enable_thinking": True},
        "logit_bias": {str(tiny_chat.THOUGHT): -100},
    }
    answer = await stage.either(stream, **fields)
    assert all(reasoning(answer))
    assert set(answer.texts.values()) == {""}
    assert set(answer.finishes.values()) == {"length"}


@of_engine
@STREAMED
async def test_I1_a_stop_string_ends_a_choice(stage: EngineStage, stream: bool) -> None:
    fields: dict[str, Any] = {"allowed_token_ids": LETTERS, "max_tokens": 40}
    free = (await stage.whole(**fields)).texts
    stop = free[0][10:13]
    ended = await stage.either(stream, **fields, stop=[stop, "never"])
    assert ended.texts == {index: text.partition(stop)[0] for index, text in free.items()}
    assert ended.finishes[0] == "stop"


@of_engine
@STREAMED
async def test_I2_each_its_own_reason(stage: EngineStage, stream: bool) -> None:
    end = {"logit_bias": {str(tiny_chat.END): 100}}
    answer = await stage.either(stream, choice_params=[end, {"max_tokens": 2, "logit_bias": {}}, end])
    assert answer.finishes == {0: "stop", 1: "length", 2: "stop"}
    assert (answer.texts[0], answer.texts[2]) == ("", "")


@of_engine
@STREAMED
async def test_I4_what_a_choice_ended_with(stage: EngineStage, stream: bool) -> None:
    """The token or string that the client named; nothing if the model ended by itself, or at the limit."""
    first, second = LETTERS[:2]
    held = [{"allowed_token_ids": [first]}, {"allowed_token_ids": [second]}, {"allowed_token_ids": [tiny_chat.END]}]
    answer = await stage.either(stream, choice_params=held, stop_token_ids=[first], stop=["bbb"])
    last = [voice.choices[-1] for voice in answer.voices] if isinstance(answer, Reading) else answer.choices
    assert [choice.get("stop_reason") for choice in last] == [first, "bbb", None]
    assert answer.finishes == {0: "stop", 1: "stop", 2: "stop"}
