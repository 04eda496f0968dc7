"""C: what a client sees of a merged whole answer; K14 the other way round."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.commands import Anomaly, CallEnded, Learn
from nproxy.choices.lessons import NativeWidth
from nproxy.choices.plan import Plan, Way, make_plan
from tests.choices.conduct_player import CREATED, ID, MODEL, NATIVE, UNTESTED, Play, chat, completion
from tests.choices.upstream_says import DONE, answer, delta, text, usage_chunk


def contents_of(reply: Any) -> list[str]:
    return [choice["message"]["content"] for choice in reply["choices"]]


def test_C1_C2_sorted_whatever_the_order() -> None:
    play = Play(chat(n=3))
    for leg in (2, 0, 1):
        play.answers(leg, answer(f"c{leg}"))
    assert contents_of(play.reply) == ["c0", "c1", "c2"]
    assert [choice["index"] for choice in play.reply["choices"]] == [0, 1, 2]


def long_answer(leg: int, tokens: int) -> bytes:
    """One whose log probabilities are most of it."""
    entries: list[dict[str, Any]] = [
        {"token": f"t{leg}", "logprob": -leg - 0.5, "bytes": None, "top_logprobs": []} for _ in range(tokens)
    ]
    whole = json.loads(answer(f"c{leg}", tokens=tokens))
    whole["choices"][0] |= {"logprobs": {"content": entries}, "stop_reason": leg}
    return json.dumps(whole).encode()


def test_C1_long_answers_say_the_same_as_short_ones() -> None:
    replies = []
    for tokens in (1, 1000):
        play = Play(chat(n=3, logprobs=True))
        for leg in (2, 0, 1):
            play.answers(leg, long_answer(leg, tokens))
        replies.append(play.reply)
        assert replies[-1]["usage"]["completion_tokens"] == 3 * tokens
        for choice in replies[-1]["choices"]:
            assert len(choice["logprobs"]["content"]) == tokens
            del choice["logprobs"]["content"][1:]
        del replies[-1]["usage"]
    assert replies[0] == replies[1]


def test_of_long_answers_no_parsed_value_is_kept_while_others_are_awaited() -> None:
    """The garbage collector would go through all tokens, again and again."""
    play = Play(chat(n=3, logprobs=True))
    bodies = [long_answer(leg, 1000) for leg in range(3)]
    gc.collect()
    before = len(gc.get_objects())
    for leg in (0, 1):
        play.answers(leg, bodies[leg])
    gc.collect()
    assert len(gc.get_objects()) - before < 1000
    play.answers(2, bodies[2])
    assert contents_of(play.reply) == ["c0", "c1", "c2"]


def test_C3_one_id_one_created_the_model_as_asked() -> None:
    play = Play(chat(n=2))
    for leg in (1, 0):
        play.answers(leg, answer("x"))
    reply = play.reply
    assert (reply["id"], reply["created"], reply["model"]) == (ID, CREATED, MODEL)
    assert reply["object"] == "chat.completion"


def test_C4_unknown_keys() -> None:
    play = Play(chat(n=2))
    for leg in (1, 0):
        body = json.loads(answer("x", service_tier=f"t{leg}", kv={"leg": leg}))
        body["choices"][0] |= {"stop_reason": leg, "token_ids": [leg]}
        body["choices"][0]["message"] |= {"annotations": [], "x": leg}
        play.answers(leg, json.dumps(body).encode())
    reply = play.reply
    assert [c["stop_reason"] for c in reply["choices"]] == [0, 1]
    assert [c["message"]["x"] for c in reply["choices"]] == [0, 1]
    assert (reply["service_tier"], reply["kv"]) == ("t0", {"leg": 0})


def test_C4_a_null_replaces_nothing_that_was_said_before() -> None:
    play = Play(chat(n=2))
    for leg in (0, 1):
        first = delta("x", role="assistant", top={"tier": leg, "none": None})
        play.streams(leg, first, delta(finish="stop", top={"tier": None}), usage_chunk(3, 2), DONE)
    assert (play.reply["tier"], play.reply["none"]) == (0, None)


def test_C5_leg_0s_fingerprint() -> None:
    play = Play(chat(n=2))
    for leg in (1, 0):
        play.answers(leg, answer("x", system_fingerprint=f"fp{leg}"))
    assert play.reply["system_fingerprint"] == "fp0"


@pytest.mark.parametrize("capability", [NATIVE, UNTESTED])
def test_C7_a_short_answer_is_topped_up_and_remembered(capability: Any) -> None:
    play = Play(chat(n=3, seed=5), capability)
    play.answers(0, answer("first"))
    assert [(o.leg.number, o.leg.offset, o.leg.width, o.leg.seed) for o in play.opened[1:]] == [
        (1, 1, 1, 6),
        (2, 2, 1, 7),
    ]
    assert [command.lesson for command in play.of(Learn)] == [NativeWidth(asked=3, got=1)]
    play.answers(2, answer("third"))
    play.answers(1, answer("second"))
    assert contents_of(play.reply) == ["first", "second", "third"]
    assert play.way == Way("fanout", 3) and play.anomalies == [Anomaly("short_answer")]


def test_C7_the_indices_of_a_short_answer_tell_which_are_missing() -> None:
    play = Play(chat(n=3), NATIVE)
    said = [
        {"index": at, "message": {"role": "assistant", "content": word}, "finish_reason": "stop"}
        for at, word in ((0, "first"), (2, "third"))
    ]
    play.answers(0, answer(choices=said))
    assert [(opened.leg.offset, opened.leg.width) for opened in play.opened[1:]] == [(1, 1)]
    play.answers(1, answer("second"))
    assert contents_of(play.reply) == ["first", "second", "third"]


@pytest.mark.parametrize("seen", [2, 3])
def test_C2_C7_choices_of_a_short_answer_that_share_an_index_go_by_position(seen: int) -> None:
    said = [
        {"index": 0, "message": {"role": "assistant", "content": word}, "finish_reason": "stop"}
        for word in ("first", "second", "third")[:seen]
    ]
    play = Play(chat(n=3), NATIVE)
    play.answers(0, answer(choices=said))
    if seen < 3:
        assert [(opened.leg.offset, opened.leg.width) for opened in play.opened[1:]] == [(2, 1)]
        play.answers(1, answer("third"))
    assert contents_of(play.reply) == ["first", "second", "third"]


def test_C7_a_top_up_that_fails_fails_the_request() -> None:
    play = Play(chat(n=2), NATIVE)
    play.answers(0, answer("first"))
    play.answers(1, b'{"error":{"message":"no"}}')
    play.fires("gather") if not play.over else None
    assert play.respond.status == 502


def test_C7_in_a_stream() -> None:
    play = Play(chat(n=3, stream=True), NATIVE)
    play.streams(0, delta("a"), delta(finish="stop"), delta("b", index=2), delta(index=2, finish="stop"), DONE)
    assert [(o.leg.offset, o.leg.width) for o in play.opened[1:]] == [(1, 1)]
    play.streams(1)
    assert play.finish == "ok"


def test_Q6_a_full_answer_of_an_untested_upstream_teaches_too() -> None:
    play = Play(chat(n=2), UNTESTED)
    play.answers(0, answer("a", "b"))
    assert [command.lesson for command in play.of(Learn)] == [NativeWidth(2, 2)]
    play = Play(chat(n=2), NATIVE)
    play.answers(0, answer("a", "b"))
    assert play.of(Learn) == []


def test_a_server_that_takes_only_the_first_of_a_list_of_prompts() -> None:
    play = Play(completion(prompt=["a", "b"], n=1))
    play.answers(0, b'{"choices":[{"index":0,"text":"A","finish_reason":"stop"}]}')
    assert [(o.leg.prompt, o.leg.width) for o in play.opened[1:]] == [(1, 1)]
    play.answers(1, b'{"choices":[{"index":0,"text":"B","finish_reason":"stop"}]}')
    assert [choice["text"] for choice in play.reply["choices"]] == ["A", "B"]


def texts(*said: str) -> bytes:
    """A whole answer of legacy completions."""
    choices = [{"index": i, "text": one, "finish_reason": "stop"} for i, one in enumerate(said)]
    return json.dumps({"choices": choices}).encode()


@pytest.mark.parametrize("as_events", [False, True])
def test_C7_of_several_prompts_it_is_not_clear_whose_choices_are_missing(as_events: bool) -> None:
    """Two of four came: both of the first prompt, or one of each? Nothing says. Each prompt is asked for by itself."""
    play = Play(completion(prompt=["a", "b"], n=2, seed=5), Capability(None, width_seen=2))
    if as_events:
        play.streams(0, text("a0", finish="stop"), text("b0", index=1, finish="stop"), DONE)
    else:
        play.answers(0, texts("a0", "b0"))
    assert [(opened.leg.prompt, opened.leg.width) for opened in play.opened[1:]] == [(0, 2), (1, 2)]
    assert play.anomalies == [Anomaly("short_answer")] and CallEnded(0) in play.everything
    for leg, word in ((1, "a0"), (2, "b0"), (3, "a1"), (4, "b1")):
        play.answers(leg, texts(word))
    assert [choice["text"] for choice in play.reply["choices"]] == ["a0", "a1", "b0", "b1"]
    assert [(o.leg.prompt, o.leg.offset, o.leg.seed) for o in play.opened[3:]] == [(0, 1, 6), (1, 1, 6)]
    assert NativeWidth(2, 1) in [command.lesson for command in play.of(Learn)]


@pytest.mark.parametrize("greedy", [False, True])
def test_C7_what_a_stream_has_shown_cannot_be_asked_for_again_but_teaches(greedy: bool) -> None:
    request = completion(prompt=["a", "b"], n=2, stream=True, **({"temperature": 0} if greedy else {}))
    (wide,) = make_plan(completion(prompt=["a", "b"], n=2), NATIVE, lambda: 7).legs
    play = Play(request, NATIVE, plan=Plan(Way("native", 1), (wide,), 2))
    play.streams(0, text("A", finish="stop"), text("B", index=1, finish="stop"), DONE)
    assert play.finish == "short"
    assert [command.lesson for command in play.of(Learn)] == ([] if greedy else [NativeWidth(2, 1)])


def test_C7_at_temperature_0_prompts_are_asked_for_one_by_one() -> None:
    """Servers may give one choice there, and then it would be unclear whose it is."""
    play = Play(completion(prompt=["a", "b"], n=2, temperature=0), NATIVE)
    assert [(opened.leg.prompt, opened.leg.width) for opened in play.opened] == [(0, 2), (1, 2)]
    assert len(Play(completion(prompt=["a", "b"], temperature=0), NATIVE).opened) == 1


def test_C9_no_logprobs_is_null() -> None:
    play = Play(chat(n=2))
    for leg in (0, 1):
        play.answers(leg, answer("x"))
    assert [choice["logprobs"] for choice in play.reply["choices"]] == [None, None]


def test_C10_equal_texts_are_kept() -> None:
    play = Play(chat(n=3))
    for leg in range(3):
        play.answers(leg, answer("same"))
    assert contents_of(play.reply) == ["same"] * 3


def test_choices_without_a_numbering_count_by_their_place() -> None:
    body = json.loads(answer("a", "b"))
    for choice in body["choices"]:
        choice["index"] = 0
    play = Play(chat(n=2), NATIVE)
    play.answers(0, json.dumps(body).encode())
    assert contents_of(play.reply) == ["a", "b"]


def test_values_are_kept_exactly() -> None:
    play = Play(chat(n=2))
    body = answer("x").replace(
        b'"finish_reason": "stop"', b'"finish_reason":"stop","big":123456789012345678901234567890'
    )
    for leg in (0, 1):
        play.answers(leg, body)
    assert play.respond.body.count(b"123456789012345678901234567890") == 2


def test_K14_a_stream_in_answer_to_a_plain_request() -> None:
    play = Play(chat(n=2))
    play.streams(0, delta("", role="assistant"), delta("he"), delta("y"), delta(finish="stop"), usage_chunk(3, 2), DONE)
    play.answers(1, answer("ho", prompt=3, tokens=4))
    assert contents_of(play.reply) == ["hey", "ho"]
    assert play.reply["choices"][0]["message"] == {"role": "assistant", "content": "hey"}
    assert play.reply["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}


def test_C4_tool_calls_of_a_whole_answer_are_untouched() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}] * 2
    body = {"choices": [{"index": 0, "message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}]}
    play = Play(chat(n=2))
    for leg in (0, 1):
        play.answers(leg, json.dumps(body).encode())
    assert [choice["message"]["tool_calls"] for choice in play.reply["choices"]] == [calls, calls]


def test_K14_tool_calls_of_a_stream_in_a_whole_answer() -> None:
    play = Play(chat(n=1))
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
    more = [{"index": 0, "function": {"arguments": piece}} for piece in ('{"a"', ":1}")]
    play.streams(
        0,
        delta(role="assistant", content=None),
        delta(tool_calls=[call]),
        *(delta(tool_calls=[piece]) for piece in more),
        delta(finish="tool_calls"),
    )
    (choice,) = play.reply["choices"]
    whole = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert choice["message"] == {"role": "assistant", "content": None, "tool_calls": [whole]}
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("role", [[], [delta(role="assistant")], [delta(role="assistant", content=None)]])
def test_K14_a_stream_without_text_in_a_whole_answer(role: list[bytes]) -> None:
    """llama.cpp begins a stream with a null content; its whole answers have an empty text if a choice ends at once."""
    play = Play(chat(n=2))
    play.streams(0, *role, delta(finish="stop"), usage_chunk(3, 0), DONE)
    play.answers(1, answer("", prompt=3, tokens=0))
    assert [choice["message"] for choice in play.reply["choices"]] == [{"role": "assistant", "content": ""}] * 2


@pytest.mark.parametrize("role", [[], [delta(role="assistant", content=None)]], ids=["", "role-first"])
def test_K14_tool_calls_of_a_stream_of_one_piece(role: list[bytes]) -> None:
    """So Gemini streams them; a message's calls have no index."""
    whole = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    play = Play(chat(n=2))
    for leg in (0, 1):
        play.streams(leg, *role, delta(tool_calls=[{"index": 0, **whole}], finish="tool_calls"), DONE)
    assert [choice["message"]["tool_calls"] for choice in play.reply["choices"]] == [[whole], [whole]]


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{}", b'{"choices":[]}', b'{"choices":3}', b"<html>"])
def test_K12_a_body_that_is_no_answer(body: bytes) -> None:
    play = Play(chat(n=2))
    play.answers(0, body)
    play.fires("gather")
    assert play.respond.status == 502
    assert play.reply["error"]["code"] == "upstream_error"
    assert play.finish == "malformed"
