"""F to J: log probabilities, tools, reasoning, finish reasons, and legacy completions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nproxy.choices.offsets import TextOffsets
from tests.choices.conduct_player import NATIVE, Play, chat, choices_in, completion, contents
from tests.choices.upstream_says import DONE, delta, text


def entry(token: str) -> dict[str, Any]:
    return {"token": token, "logprob": -0.1234567890123456, "bytes": list(token.encode()), "top_logprobs": []}


def chat_logprobs(*tokens: str) -> dict[str, Any]:
    return {"content": [entry(token) for token in tokens], "refusal": None}


def test_F1_each_choice_has_its_own_and_each_entry_rides_with_its_text() -> None:
    play = Play(chat(n=2, stream=True, logprobs=True))
    for i in range(3):
        for leg in (1, 0):
            play.says(leg, delta(f"{leg}{i}", logprobs=chat_logprobs(f"{leg}{i}")))
    for choice in choices_in(play.frames):
        if choice["delta"] != {"role": "assistant", "content": ""}:
            assert choice["logprobs"] == chat_logprobs(choice["delta"]["content"])


def test_F1_folded_from_a_stream() -> None:
    play = Play(chat(n=1, logprobs=True))
    play.streams(
        0, delta("a", logprobs=chat_logprobs("a")), delta("b", logprobs=chat_logprobs("b")), delta(finish="stop"), DONE
    )
    assert play.reply["choices"][0]["logprobs"] == chat_logprobs("a", "b")


def test_F1_with_tools() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    play = Play(chat(n=2, stream=True, logprobs=True))
    play.says(1, delta(tool_calls=[call], logprobs=chat_logprobs("f")))
    assert play.frames[-1]["choices"][0]["logprobs"] == chat_logprobs("f")


def legacy(tokens: list[str], offsets: list[int]) -> dict[str, Any]:
    scores: list[Any] = [-1.0] * len(tokens)
    return {"tokens": tokens, "token_logprobs": scores, "top_logprobs": None, "text_offset": offsets}


@pytest.mark.parametrize(
    "sent",
    [[[0, 2], [0], [0]], [[0, 2], [3], [5]], [[7, 9], [10], [12]], [[7, 9], [0], [0]]],
    ids=["restarts", "runs on", "runs on behind the prompt", "restarts behind the prompt"],
)
@pytest.mark.parametrize("stream", [True, False])
def test_F4_text_offsets_run_on(sent: list[list[int]], stream: bool) -> None:
    play = Play(completion(n=2, stream=stream, logprobs=1))
    said = [["é ", "a"], ["bc"], ["d"]]
    for tokens, offsets in zip(said, sent, strict=True):
        for leg in (0, 1):
            play.says(leg, text("".join(tokens), logprobs=legacy(tokens, offsets)))
    start = sent[0][0]
    wanted = [start, start + 2, start + 3, start + 5]
    for leg in (0, 1):
        play.streams(leg, text("", finish="stop"), DONE)
    if stream:
        shown = [c for c in choices_in(play.frames) if c["index"] == 1 and c["logprobs"]]
        assert [offset for c in shown for offset in c["logprobs"]["text_offset"]] == wanted
    else:
        assert play.reply["choices"][1]["logprobs"]["text_offset"] == wanted
        assert play.reply["choices"][1]["logprobs"]["tokens"] == ["é ", "a", "bc", "d"]


def test_F4_text_before_the_first_offsets_counts() -> None:
    offsets = TextOffsets()
    assert offsets.mend(None, "hello") is None
    assert offsets.mend({"text_offset": [0]}, "x") == {"text_offset": [5]}


def test_F5_F7_bytes_and_nulls_pass() -> None:
    odd = {"content": [{"token": "\ufffd", "logprob": None, "bytes": [240, 159], "top_logprobs": []}], "refusal": None}
    play = Play(chat(n=2, stream=True, logprobs=True))
    play.says(0, delta("\ufffd", logprobs=odd))
    assert play.frames[-1]["choices"][0]["logprobs"] == odd


def call(index: int | None, id: str | None = None, name: str | None = None, arguments: str = "") -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name is not None else {})
    numbered = {} if index is None else {"index": index}
    return numbered | ({"id": id, "type": "function"} if id is not None else {}) | {"function": function}


def tool_calls(play: Play, index: int) -> list[Any]:
    return [
        c
        for choice in choices_in(play.frames)
        if choice["index"] == index
        for c in choice["delta"].get("tool_calls", [])
    ]


def test_G1_G5_every_choice_counts_from_0() -> None:
    play = Play(chat(n=2, stream=True))
    for leg in (1, 0):
        play.says(leg, delta(tool_calls=[call(0, "a", "f")]), delta(tool_calls=[call(1, "b", "g")]))
    for index in (0, 1):
        assert [(c["index"], c["id"]) for c in tool_calls(play, index)] == [(0, "a"), (1, "b")]


def test_G3_id_and_name_once() -> None:
    play = Play(chat(n=2, stream=True))
    for arguments in ("{", "}"):
        play.says(0, delta(tool_calls=[call(0, "a", "f", arguments)]))
    first, second = tool_calls(play, 0)
    assert (first["id"], first["function"]["name"]) == ("a", "f")
    assert "id" not in second and "name" not in second["function"]
    assert second["function"]["arguments"] == "}"


def test_G6_I2_each_its_own_finish_reason() -> None:
    play = Play(chat(n=3))
    for leg, reason in enumerate(("stop", "length", "content_filter")):
        play.answers(
            leg, json.dumps({"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": reason}]}).encode()
        )
    assert [choice["finish_reason"] for choice in play.reply["choices"]] == ["stop", "length", "content_filter"]


def test_G7_stop_beside_tool_calls_stays() -> None:
    play = Play(chat(n=2, stream=True))
    play.says(0, delta(tool_calls=[call(0, "a", "f")]), delta(finish="stop"))
    assert play.frames[-1]["choices"][0]["finish_reason"] == "stop"


def test_G8_legacy_function_call_passes() -> None:
    play = Play(chat(n=2, stream=True))
    play.says(0, delta(function_call={"name": "f", "arguments": "{}"}))
    assert play.frames[-1]["choices"][0]["delta"] == {"function_call": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_H1_reasoning_passes_per_choice(key: str) -> None:
    play = Play(chat(n=2, stream=True))
    for i in range(4):
        for leg in (0, 1):
            said_now: dict[str, Any] = {key: f"{leg}{i}"}
            play.says(leg, delta(**said_now))
    said: dict[int, str] = {0: "", 1: ""}
    for choice in choices_in(play.frames):
        said[choice["index"]] += choice["delta"].get(key, "")
    assert said == {0: "00010203", 1: "10111213"}


@pytest.mark.parametrize("content", [None, ""])
def test_H3_cut_while_reasoning(content: str | None) -> None:
    body = {"choices": [{"index": 0, "message": {"content": content, "reasoning": "hm"}, "finish_reason": "length"}]}
    play = Play(chat(n=2))
    for leg in (0, 1):
        play.answers(leg, json.dumps(body).encode())
    assert [c["message"]["content"] for c in play.reply["choices"]] == [content, content]


def test_H4_lists_with_their_own_index_are_untouched() -> None:
    details = [{"index": 3, "type": "reasoning.text", "text": "x"}]
    play = Play(chat(n=2, stream=True))
    play.says(1, delta(reasoning_details=details))
    assert play.frames[-1]["choices"][0]["delta"]["reasoning_details"] == details


def test_I4_stop_reason_is_kept() -> None:
    play = Play(chat(n=2, stream=True))
    play.says(0, delta("x", finish="stop", stop_reason="END"))
    assert play.frames[-1]["choices"][0]["stop_reason"] == "END"


def test_J1_three_of_one_prompt() -> None:
    play = Play(completion(n=3, stream=True))
    for leg in (2, 1, 0):
        play.streams(leg, text(f"t{leg}"), text("", finish="length"), DONE)
    assert contents(play.frames) == {0: "t0", 1: "t1", 2: "t2"}


@pytest.mark.parametrize("stream", [True, False])
def test_J2_two_prompts_prompt_major(stream: bool) -> None:
    play = Play(completion(prompt=["a", "b"], n=2, stream=stream))
    for leg in (1, 0):
        said = [text(f"{prompt}{leg}", index=j, finish="stop") for j, prompt in enumerate("ab")]
        play.streams(leg, *said, DONE)
    if stream:
        assert contents(play.frames) == {0: "a0", 1: "a1", 2: "b0", 3: "b1"}
    else:
        assert [choice["text"] for choice in play.reply["choices"]] == ["a0", "a1", "b0", "b1"]


def test_J6_echo_comes_once_per_index() -> None:
    play = Play(completion(prompt="p:", n=2, echo=True, stream=True), NATIVE)
    for i in (0, 1):
        play.says(0, text("p:", index=i), text(f"{i}", index=i, finish="stop"))
    play.ends(0)
    assert contents(play.frames) == {0: "p:0", 1: "p:1"}
