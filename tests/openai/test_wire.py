"""The one writer: frames and answers as a client reads them, checked with the official SDK's types too."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import invalid_request
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.sse import SSEDecoder
from nproxy.openai.usage import Usage
from nproxy.openai.wire import DONE_FRAME, PING, Wire, error_event, event

CHAT = Wire(Dialect.CHAT, "chatcmpl-1", 17, "m")
TEXT = Wire(Dialect.COMPLETIONS, "cmpl-1", 17, "m")
OWN = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 17, "model": "m"}
USAGE = Usage(10, 15, completion_details={"reasoning_tokens": 2})


def frames(data: bytes) -> list[Any]:
    decoder = SSEDecoder()
    values = [json.loads(event.data) for event in decoder.feed(data)]
    assert decoder.close() == []  # every frame is whole
    return values


def frame(data: bytes) -> Any:
    (value,) = frames(data)
    return value


def test_D1_the_prelude_has_one_role_chunk_per_choice() -> None:
    assert frames(CHAT.prelude(range(3))) == [
        OWN
        | {
            "choices": [
                {
                    "index": index,
                    "delta": {"role": "assistant", "content": ""},
                    "logprobs": None,
                    "finish_reason": None,
                }
            ]
        }
        for index in range(3)
    ]
    assert frames(CHAT.prelude([])) == []


@pytest.mark.parametrize("calls", [False, True])
def test_D1_the_prelude_is_written_as_any_other_chunk(calls: bool) -> None:
    for wire in (CHAT, CHAT.with_fingerprint("fp"), replace(CHAT, include_usage=True)):
        wire = replace(wire, calls=calls)
        role: dict[str, JSON] = {"role": "assistant", "content": None if calls else ""}
        assert wire.prelude([0, 127]) == wire.chunk(0, role) + wire.chunk(127, role)


def test_D1_legacy_completions_have_no_prelude() -> None:
    assert TEXT.prelude(range(3)) == b""


def test_D5_one_head_on_every_frame() -> None:
    wire = Wire(Dialect.CHAT, "i", 1, 'm "é"', fingerprint="fp", include_usage=True)
    sent = wire.prelude([0]) + wire.text(0, "x") + wire.chunk(0, {}, finish_reason="stop") + wire.usage_tail(USAGE)
    head = {"id": "i", "object": "chat.completion.chunk", "created": 1, "model": 'm "é"', "system_fingerprint": "fp"}
    for value in frames(sent):
        assert {key: value[key] for key in head} == head


def test_a_chunk_is_compact_and_its_bytes_are_known() -> None:
    assert (
        CHAT.chunk(2, {"content": "é\n"})
        == (
            'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":17,"model":"m","choices":'
            '[{"index":2,"delta":{"content":"é\\n"},"logprobs":null,"finish_reason":null}]}\n\n'
        ).encode()
    )


def test_D17_a_delta_holds_what_was_given_and_nothing_else() -> None:
    delta: dict[str, JSON] = {"content": "x", "reasoning": "r", "tool_calls": [{"index": 0}]}
    assert frame(CHAT.chunk(0, delta))["choices"][0]["delta"] == delta


def test_C4_unknown_keys_are_kept_and_own_keys_win() -> None:
    value = frame(
        CHAT.chunk(
            1,
            {"content": "x"},
            finish_reason="stop",
            logprobs={"content": []},
            extra={"stop_reason": 5, "index": 9, "delta": 9, "finish_reason": 9},
            top={"service_tier": "t", "id": 9, "choices": 9, "usage": 9, "model": 9},
        )
    )
    choice = {
        "index": 1,
        "delta": {"content": "x"},
        "logprobs": {"content": []},
        "finish_reason": "stop",
        "stop_reason": 5,
    }
    assert value == OWN | {"choices": [choice], "service_tier": "t"}


def test_legacy_chunk() -> None:
    value = frame(TEXT.chunk(1, {"text": "x"}, finish_reason="stop", extra={"stop_reason": None, "text": "y"}))
    assert value["object"] == "text_completion"
    assert value["choices"] == [
        {"index": 1, "text": "x", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]


def test_text_of_the_engine() -> None:
    assert CHAT.text(1, "x") == CHAT.chunk(1, {"content": "x"})
    assert CHAT.text(1, "x", finish_reason="stop") == CHAT.chunk(1, {"content": "x"}, finish_reason="stop")
    assert CHAT.text(1, "") == CHAT.chunk(1, {"content": ""})
    assert CHAT.text(1, "", finish_reason="stop") == CHAT.chunk(1, {}, finish_reason="stop")
    assert TEXT.text(1, "", finish_reason="stop") == TEXT.chunk(1, {"text": ""}, finish_reason="stop")


class TestUsage:
    def test_E7_the_tail_has_no_choices_and_the_fingerprint(self) -> None:
        wire = Wire(Dialect.CHAT, "chatcmpl-1", 17, "m", include_usage=True).with_fingerprint("fp")
        tail = {
            "choices": [],
            "system_fingerprint": "fp",
            "usage": {
                "prompt_tokens": 10,
                "completion_tokens": 15,
                "total_tokens": 25,
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
        }
        assert frame(wire.usage_tail(USAGE)) == OWN | tail
        assert frame(wire.usage_tail(USAGE, {"timings": {"x": 1}})) == OWN | tail | {"timings": {"x": 1}}

    def test_E7_usage_is_null_on_all_earlier_chunks(self) -> None:
        wire = Wire(Dialect.CHAT, "i", 1, "m", include_usage=True)
        for value in frames(wire.prelude([0, 1]) + wire.text(0, "x") + wire.chunk(0, {}, top={"a": 1})):
            assert value["usage"] is None

    def test_E8_not_asked_for_no_key(self) -> None:
        for value in frames(CHAT.prelude([0, 1]) + CHAT.text(0, "x")):
            assert "usage" not in value

    def test_E12_a_running_total(self) -> None:
        wire = Wire(Dialect.CHAT, "i", 1, "m", include_usage=True)
        value = frame(wire.chunk(0, {"content": "x"}, usage=Usage(3, 4).to_json(), top={"a": 1}))
        assert value["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        assert value["a"] == 1


def test_C5_a_fingerprint_can_be_learned_late() -> None:
    assert "system_fingerprint" not in frame(CHAT.text(0, "x"))
    assert frame(CHAT.with_fingerprint("fp").text(0, "x"))["system_fingerprint"] == "fp"
    assert CHAT.with_fingerprint(None) is CHAT


def test_D9_P14_K6_fixed_frames() -> None:
    assert DONE_FRAME == b"data: [DONE]\n\n"
    assert PING == b": ping\n\n"
    assert SSEDecoder().feed(PING) == []
    assert event(b"{}") == b"data: {}\n\n"
    value = frame(error_event(invalid_request("line\nbreak", param="n")))
    assert value == {"error": {"message": "line\nbreak", "type": "invalid_request_error", "param": "n", "code": None}}


class TestAnswer:
    def test_chat(self) -> None:
        wire = CHAT.with_fingerprint("fp")
        message: dict[str, Any] = {"role": "assistant", "tool_calls": [1]}
        extra = {"index": 9, "x": 1}
        choices = [
            wire.choice({"content": "a"}, finish_reason="stop"),
            wire.choice(message, finish_reason="length", logprobs={"content": []}, extra=extra),
        ]
        assert json.loads(wire.answer(enumerate(choices), USAGE, {"service_tier": "t", "id": 9})) == {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 17,
            "model": "m",
            "system_fingerprint": "fp",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "a"},
                    "logprobs": None,
                    "finish_reason": "stop",
                },
                {
                    "index": 1,
                    "message": {"role": "assistant", "content": None, "tool_calls": [1]},
                    "logprobs": {"content": []},
                    "finish_reason": "length",
                    "x": 1,
                },
            ],
            "usage": USAGE.to_json(),
            "service_tier": "t",
        }

    def test_C9_logprobs_null_E6_usage_absent(self) -> None:
        value = json.loads(TEXT.answer([(0, TEXT.choice({"text": "x"}, finish_reason="stop"))], None))
        assert value["choices"] == [{"index": 0, "text": "x", "logprobs": None, "finish_reason": "stop"}]
        assert value["object"] == "text_completion"
        assert "usage" not in value

    def test_C10_equal_choices_are_all_kept(self) -> None:
        choices = [(index, CHAT.choice({"content": "same"}, finish_reason="stop")) for index in range(3)]
        assert [choice["index"] for choice in json.loads(CHAT.answer(choices, None))["choices"]] == [0, 1, 2]


anything = st.text(max_size=8)  # lone surrogates included
nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | anything,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(anything, inner, max_size=2),
    max_leaves=5,
)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(anything, st.integers(0, 200), st.dictionaries(anything, nested, max_size=2), st.booleans())
def test_every_frame_is_one_event_of_strict_json(text: str, index: int, extra: dict[str, Any], chat: bool) -> None:
    wire = CHAT if chat else TEXT

    def strict(constant: str) -> None:
        pytest.fail(f"{constant} on the wire")

    sent = wire.chunk(index, {"text": text}, extra=extra, top=extra) + wire.text(index, text, finish_reason="stop")
    decoder = SSEDecoder()
    events = decoder.feed(sent)
    assert len(events) == 2
    for one in events:
        (choice,) = json.loads(one.data, parse_constant=strict)["choices"]
        assert choice["index"] == index
    body = choice["delta"] if chat else choice
    assert body.get("content" if chat else "text", "") == text


@pytest.mark.filterwarnings("default")  # what the SDK's import warns of is its own affair
def test_the_official_types_accept_every_frame_and_answer() -> None:
    wire = Wire(Dialect.CHAT, "i", 1, "m", include_usage=True)
    stream = wire.prelude([0, 1]) + wire.text(0, "x", finish_reason="stop") + wire.usage_tail(USAGE)
    for value in frames(stream):
        ChatCompletionChunk.model_validate(value)
    for value in frames(TEXT.text(0, "x", finish_reason="stop")):
        Completion.model_validate(value)
    said = CHAT.choice({"content": "a"}, finish_reason="stop")
    ChatCompletion.model_validate_json(CHAT.answer([(0, said)], USAGE))
    said = TEXT.choice({"text": "a"}, finish_reason="stop")
    Completion.model_validate_json(TEXT.answer([(0, said)], USAGE))
