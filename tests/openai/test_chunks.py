"""What upstreams send, as values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nproxy.openai.chunks import MalformedChunk, UpstreamChoice, UpstreamChunk, is_done, parse_answer, parse_chunk
from nproxy.openai.dialect import Dialect
from nproxy.openai.sse import SSEDecoder
from nproxy.openai.usage import Usage
from tests.transcripts.recorded import SERVERS, load, names

CHAT, COMPLETIONS = Dialect.CHAT, Dialect.COMPLETIONS


def chat(*choices: Any, **top: Any) -> UpstreamChunk:
    return parse_chunk(json.dumps({"id": "u", "choices": list(choices)} | top).encode(), CHAT)


def one(**choice: Any) -> UpstreamChoice:
    return chat(choice).choices[0]


def test_a_chunk_in_parts() -> None:
    chunk = chat(
        {
            "index": 3,
            "delta": {"role": "assistant", "content": "x"},
            "finish_reason": "stop",
            "logprobs": {"content": []},
        },
        model="m",
        created=1,
        object="chat.completion.chunk",
        system_fingerprint="fp",
        service_tier="flex",
        usage={"prompt_tokens": 1, "completion_tokens": 2},
    )
    choice = UpstreamChoice(3, {"content": "x"}, "assistant", "stop", {"content": []}, {})
    assert chunk == UpstreamChunk((choice,), Usage(1, 2), "fp", None, {"service_tier": "flex"})


def test_C4_I4_unknown_keys_of_a_choice_are_kept() -> None:
    assert one(delta={}, stop_reason=128001, token_ids=[1]).extra == {"stop_reason": 128001, "token_ids": [1]}


def test_D4_a_chunk_with_several_choices() -> None:
    chunk = chat({"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}})
    assert [(choice.index, choice.delta) for choice in chunk.choices] == [(0, {"content": "a"}), (1, {"content": "b"})]


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None},
        {"delta": {"role": "assistant", "content": None}, "finish_reason": ""},
        {"delta": {"role": None}, "token_ids": None},
        {"delta": {"tool_calls": [], "reasoning": ""}},
        {"delta": {}},
        {"delta": None},
        {},
    ],
)
def test_D2_a_role_alone_is_bare(choice: dict[str, Any]) -> None:
    assert one(**choice).bare


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"content": "x"}},
        {"delta": {"content": " "}},
        {"delta": {"role": "assistant", "reasoning_content": "x"}},
        {"delta": {"tool_calls": [{}]}},
        {"delta": {"content": ""}, "finish_reason": "stop"},
        {"delta": {"content": ""}, "logprobs": {"content": []}},
        {"delta": {"content": ""}, "token_ids": [5]},
        {"delta": {"audio": {"id": "x"}}},
        {"delta": {"flag": False}},
    ],
)
def test_D2_what_says_something_is_not_bare(choice: dict[str, Any]) -> None:
    assert not one(**choice).bare


def test_D2_role_null_is_no_role() -> None:
    assert one(delta={"role": None, "content": "x"}) == one(delta={"content": "x"})


def test_H1_H4_reasoning_and_lists_are_untouched() -> None:
    delta = {"reasoning_content": "r", "thinking": [{"index": 5, "t": "x"}], "content": None}
    assert one(delta=delta).delta == delta


@pytest.mark.parametrize(("came", "text"), [(6, "6"), (0, "0"), (0.5, "0.5"), (-1, "-1")])
def test_D16_a_content_that_is_a_number_is_a_text(came: float, text: str) -> None:
    assert one(delta={"role": "assistant", "content": came}).delta == {"content": text}


@pytest.mark.parametrize("said", ["", "null"])
def test_D8_an_empty_finish_reason_is_none(said: str) -> None:
    assert one(delta={}, finish_reason=said).finish_reason is None


def test_an_absent_index_is_0_and_absent_choices_are_none() -> None:
    assert one(delta={}).index == one(index=None).index == 0
    assert parse_chunk(b"{}", CHAT) == UpstreamChunk((), None, None, None, {})
    assert parse_chunk(b'{"choices":null,"x":1}', CHAT).extra == {"x": 1}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"error": {"message": "m"}}, {"message": "m"}),
        ({"error": "text", "choices": [{"index": "bad"}]}, "text"),
        ({"object": "error", "message": "m"}, {"object": "error", "message": "m"}),
    ],
)
def test_K8_in_band_errors(data: dict[str, Any], error: Any) -> None:
    for parse in (parse_chunk, parse_answer):
        chunk = parse(json.dumps(data).encode(), CHAT)
        assert (chunk.error, chunk.choices) == (error, ())


@pytest.mark.parametrize("nothing", [None, "", {}, False])
def test_K16_an_empty_error_is_none(nothing: Any) -> None:
    chunk = parse_chunk(json.dumps({"error": nothing, "choices": [{}]}).encode(), CHAT)
    assert chunk.error is None
    assert len(chunk.choices) == 1


@pytest.mark.parametrize("code", [0, "0", 200, "200", "", None])
def test_K16_a_code_of_success_is_no_error(code: Any) -> None:
    assert chat(code=code, message="Success").error is None
    assert chat(status=code, msg="Success").error is None


def test_K16_a_code_beside_choices_or_without_words_is_no_error() -> None:
    assert chat({"delta": {}}, code=1, msg="m").error is None
    assert chat(code=1).error is None
    assert chat(status="434", msg=None).error is None


def test_K16_a_status_in_words_is_no_error() -> None:
    assert chat(status="processing", message="The model is loaded.").error is None


def test_D2_an_empty_role_is_none() -> None:
    assert one(delta={"role": ""}).role is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"[]",
        b"1",
        b"[DONE]",
        b'{"choices":{}}',
        b'{"choices":"x"}',
        b'{"choices":[1]}',
        b'{"choices":[{"index":"0"}]}',
        b'{"choices":[{"index":-1}]}',
        b'{"choices":[{"index":true}]}',
        b'{"choices":[{"index":1.0}]}',
        b'{"choices":[{"delta":"x"}]}',
        b'{"choices":[{"delta":[]}]}',
        b'{"choices":[{"finish_reason":1}]}',
        b'{"choices":[{"delta":{"content":nan}}]}',
        b'{"choices":[{"delta":{"content":1e999}}]}',
        b'{"choices":[{"delta":{"content":"\xff"}}]}',
        b'{"choices":[{"delta":' + b'{"x":' * 1500 + b"1" + b"}" * 1500 + b"}]}",
        b'{"choices":[{"delta":{"content":"x"}}]',
        b'{"choices":[]}{"choices":[]}',
    ],
)
def test_K12_malformed(data: bytes) -> None:
    with pytest.raises(MalformedChunk):
        parse_chunk(data, CHAT)


@pytest.mark.parametrize("data", [b'{"choices":[{"text":1}]}', b'{"choices":[{"text":{"x":1}}]}', b'{"choices":[7]}'])
def test_K12_malformed_completion(data: bytes) -> None:
    with pytest.raises(MalformedChunk):
        parse_chunk(data, COMPLETIONS)


@pytest.mark.parametrize("data", [b"{}", b'{"choices":null}', b'{"choices":[{"message":"x"}]}', b"<html>"])
def test_K12_malformed_answer(data: bytes) -> None:
    with pytest.raises(MalformedChunk):
        parse_answer(data, CHAT)


@pytest.mark.parametrize(
    ("dialect", "choice"),
    [
        (CHAT, {}),
        (CHAT, {"message": None}),
        (CHAT, {"message": {"role": "assistant", "content": None}, "finish_reason": ""}),
        (COMPLETIONS, {"text": ""}),
    ],
)
def test_K12_a_choice_that_says_nothing_is_no_answer(dialect: Dialect, choice: dict[str, Any]) -> None:
    said: dict[str, Any] = {"message": {"content": "x"}} if dialect is CHAT else {"text": "x"}
    with pytest.raises(MalformedChunk, match="empty"):
        parse_answer(json.dumps({"choices": [said, choice]}).encode(), dialect)
    assert parse_answer(json.dumps({"choices": [said, {**choice, "finish_reason": "stop"}]}).encode(), dialect)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["choices", "index", "delta", "text", "usage", "error", "finish_reason"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    ),
    st.sampled_from([CHAT, COMPLETIONS]),
)
@example({"choices": [{"index": 1, "delta": {"content": "a"}, "finish_reason": None}]}, CHAT)
@example({"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}, COMPLETIONS)
def test_K12_any_json_is_a_chunk_or_malformed(value: Any, dialect: Dialect) -> None:
    try:
        chunk = parse_chunk(json.dumps(value).encode(), dialect)
    except MalformedChunk:
        return
    assert all(choice.index >= 0 and isinstance(choice.delta, dict) for choice in chunk.choices)


@pytest.mark.parametrize(
    ("data", "done"), [(b"[DONE]", True), (b" [DONE] ", True), (b"[DONE]x", False), (b"{}", False)]
)
def test_D9_the_done_mark(data: bytes, done: bool) -> None:
    assert is_done(data) is done


def test_K14_a_whole_answer_is_one_chunk() -> None:
    recorded = load("vllm", "n2")
    chunk = parse_answer(recorded.body, CHAT)
    assert [choice.index for choice in chunk.choices] == [0, 1]
    assert [choice.delta["content"] for choice in chunk.choices] == [
        "Ascending baby color may refer to",
        "The main planet Saturn is known for being",
    ]
    assert {choice.finish_reason for choice in chunk.choices} == {"length"}
    assert {choice.role for choice in chunk.choices} == {"assistant"}
    assert "role" not in chunk.choices[0].delta
    assert chunk.choices[0].extra == {"stop_reason": None, "token_ids": None, "routed_experts": None}
    assert chunk.usage == Usage(34, 16)
    assert chunk.fingerprint == "vllm-0.32.0-f3e6d7fd"


def test_a_completion_in_parts() -> None:
    data = {"choices": [{"index": 1, "text": "x", "logprobs": None, "finish_reason": "stop", "stop_reason": "\n"}]}
    for parse in (parse_chunk, parse_answer):
        assert parse(json.dumps(data).encode(), COMPLETIONS).choices == (
            UpstreamChoice(1, {"text": "x"}, None, "stop", None, {"stop_reason": "\n"}),
        )
    assert parse_chunk(b'{"choices":[{"text":null}]}', COMPLETIONS).choices[0].delta == {"text": ""}


@pytest.mark.parametrize(("server", "name"), [(server, name) for server in SERVERS for name in names(server)])
def test_every_recorded_answer_is_read(server: str, name: str) -> None:
    recorded = load(server, name)
    dialect = COMPLETIONS if recorded.path == "/v1/completions" else CHAT
    if recorded.status != 200:
        assert parse_answer(recorded.body, dialect).error
        return
    if "event-stream" in recorded.content_type:
        decoder = SSEDecoder()
        events = decoder.feed(recorded.body) + decoder.close()
        chunks = [parse_chunk(event.data, dialect) for event in events if not is_done(event.data)]
    else:
        chunks = [parse_answer(recorded.body, dialect)]
    finished = [choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert sorted(finished) == sorted({choice.index for chunk in chunks for choice in chunk.choices})
    assert not any(chunk.error for chunk in chunks)
