"""D11: what passes untouched, and what a rule changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nproxy.choices.commands import Spent
from nproxy.openai.sse import SSEDecoder
from tests.choices.conduct_player import (
    ALIASED,
    CREATED,
    EXACT,
    FANOUT,
    ID,
    MODEL,
    NATIVE,
    Play,
    chat,
    choices_in,
    completion,
    contents,
    finishes,
)
from tests.choices.upstream_says import DONE, ROLE, answer, chunk, delta, framed, text, usage, usage_chunk

ASKED = {"include_usage": True}


def odd(choice: bytes, more: bytes = b"") -> bytes:
    """A chunk with key order and white space of its own."""
    rest = b'"model":"up","id":"u","created":5,"object":"chat.completion.chunk"'
    return b'{"choices": [{%s}],%s%s}' % (choice, rest, more)


SAID = [b"a", b"\\u00e9\\/", "é".encode(), b"b", b' \\"model\\":\\"up\\" ,\\"usage\\":null', b"c"]
ODD = [
    odd(b'"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}'),
    *(odd(b'"finish_reason":null,"index":0,"delta":{"content":"%s"}' % said) for said in SAID),
    odd(b'"finish_reason":"stop","index":0,"delta":{}', b',"x":1.50'),
]


def test_A1_D11_the_bytes_pass() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.streams(0, *ODD, DONE)
    assert play.emitted == framed(*ODD, DONE)


def test_A1_a_whole_answer_passes() -> None:
    body = b' {"id":"u", "model":"up","choices":[{"index":0,"message":{"content":"x"},"finish_reason":null}],"x":1.50}'
    play = Play(chat(), NATIVE)
    play.answers(0, body)
    assert play.respond.body == body


def test_C2_an_index_that_is_missing_is_added() -> None:
    """Clients collect choices by it, also with one choice."""
    play = Play(chat(stream=True), NATIVE)
    bare = [
        b'{"choices":[{"delta":{"content":"x"},"finish_reason":null}]}',
        b'{"choices":[{"delta":{},"finish_reason":"stop"}]}',
    ]
    play.streams(0, *bare, DONE)
    frames = [json.loads(frame[6:]) for frame in play.emitted.split(b"\n\n") if frame.startswith(b"data: {")]
    assert [choice["index"] for frame in frames for choice in frame["choices"]] == [0, 0, 0]


@pytest.mark.parametrize("index", ["", '"index":5,'])
def test_C2_the_index_of_a_whole_answer_of_one_choice_is_0(index: str) -> None:
    play = Play(chat(), NATIVE)
    choice = f'{{{index}"message":{{"role":"assistant","content":"x"}},"finish_reason":"stop"}}'
    play.answers(0, f'{{"id":"u","model":"up","choices":[{choice}]}}'.encode())
    assert [choice["index"] for choice in play.reply["choices"]] == [0]


@pytest.mark.parametrize(("indices", "texts"), [((1, 0), ("y", "x")), ((0, 0), ("x", "y")), ((None, None), ("x", "y"))])
def test_J2_choices_of_several_prompts_stand_in_order(
    indices: tuple[int | None, int | None], texts: tuple[str, str]
) -> None:
    choices = [
        {**({} if index is None else {"index": index}), "text": text, "finish_reason": "stop"}
        for index, text in zip(indices, "xy", strict=True)
    ]
    play = Play(completion(prompt=["a", "b"]), NATIVE)
    play.answers(0, json.dumps({"id": "u", "model": "up", "choices": choices, "usage": usage(6, 2), "x": 1}).encode())
    assert [(choice["index"], choice["text"]) for choice in play.reply["choices"]] == [*enumerate(texts)]
    assert (play.reply["id"], play.reply["model"], play.reply["x"]) == ("u", "up", 1)


def test_choices_that_an_earlier_call_finished_are_in_the_answer_too() -> None:
    play = Play(completion(prompt=["a", "b"]), NATIVE, retries=1)
    play.breaks_off(0, text("x", index=1), text("", index=1, finish="stop"), text("y"))
    play.fires("retry:0")
    play.answers(0, json.dumps({"choices": [{"index": 0, "text": "z", "finish_reason": "stop"}]}).encode())
    assert [(choice["index"], choice["text"]) for choice in play.reply["choices"]] == [(0, "z"), (1, "x")]


def test_E8_the_usage_chunk_that_nproxy_asked_for_is_taken_out() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.streams(0, *ODD, usage_chunk(3, 2), DONE)
    assert play.emitted == framed(*ODD, DONE)
    assert play.of(Spent) == [Spent(3, 2, 3, 2)]


def test_E8_so_are_the_nulls_before_it() -> None:
    play = Play(chat(stream=True), NATIVE)
    nulls = [event[:-1] + b',"usage":null}' for event in ODD]
    play.streams(0, *nulls, usage_chunk(3, 2), DONE)
    assert play.emitted == framed(*ODD, DONE)


def test_E7_nulls_before_the_usage_that_the_client_asked_for() -> None:
    play = Play(chat(stream=True, stream_options=ASKED), NATIVE)
    tail = usage_chunk(3, 2)
    play.streams(0, *ODD, tail, DONE)
    assert play.emitted == framed(
        *(event[:-1] + b',"usage":null}' for event in ODD), tail.replace(b'"up-1"', b'"u"'), DONE
    )


def test_E7_usage_comes_last_whenever_it_came() -> None:
    play = Play(chat(stream=True, stream_options=ASKED), NATIVE)
    play.streams(0, usage_chunk(3, 2), delta("x", role="assistant"), delta(finish="stop"), DONE)
    assert [bool(frame["choices"]) for frame in play.frames[:-1]] == [True, True, False]


def once_each(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object that has every key once."""
    read = dict(members)
    assert len(read) == len(members), f"a key occurs twice: {[key for key, _ in members]}"
    return read


def test_E7_usage_beside_the_last_choice_stands_there_once() -> None:
    play = Play(chat(stream=True, stream_options=ASKED), NATIVE)
    said = [delta(word, role="assistant" if word == "a" else None) for word in "abc"]
    play.streams(0, *said, delta("", finish="stop", top={"usage": usage(3, 3)}), DONE)
    events = [event.data for event in SSEDecoder().feed(play.emitted)]
    told = [json.loads(data, object_pairs_hook=once_each)["usage"] for data in events[:-1]]
    assert told == [None] * 4 + [usage(3, 3)]


def test_C13_a_whole_answer_with_more_choices_than_asked_for() -> None:
    play = Play(chat(), NATIVE)
    play.answers(0, answer("x", "y", "z", tokens=3))
    assert [choice["message"]["content"] for choice in play.reply["choices"]] == ["x"]
    assert (play.reply["id"], play.reply["model"], play.reply["usage"]) == ("up-1", "up", usage(10, 3))


def test_C13_though_they_all_say_they_are_the_first() -> None:
    play = Play(chat(), NATIVE)
    play.answers(0, answer("x", "y").replace(b'"index": 1', b'"index": 0'))
    assert [choice["message"]["content"] for choice in play.reply["choices"]] == ["x"]


def test_R8_what_says_nothing_is_not_relayed() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.streams(0, b"{}", *ODD[:2], b" {} ", *ODD[2:], DONE)
    assert play.emitted == framed(*ODD, DONE)


def test_R8_a_chunk_without_choices_gets_an_empty_list() -> None:
    play = Play(chat(stream=True, stream_options=ASKED), NATIVE)
    bare = {"id": "u", "usage": usage(3, 2)}
    play.streams(0, b'{"type":"ping"}', *ODD, json.dumps(bare).encode(), DONE)
    silent = [frame["choices"] for frame in (play.frames[0], play.frames[-2])]
    assert silent == [[], []]


def test_F8_what_is_not_json_is_written_anew() -> None:
    logprobs = {"content": [{"token": "x", "logprob": float("-inf")}]}
    play = Play(chat(stream=True, logprobs=True, stream_options=ASKED), NATIVE)
    odd = {"odd": float("nan")}
    play.streams(
        0,
        chunk([], usage=None, **odd),
        delta("x", role="assistant", logprobs=logprobs, top={"usage": None}),
        delta(finish="stop", top={"usage": None, **odd}),
        chunk([], usage=usage(3, 2), **odd),
        DONE,
    )
    assert b"NaN" not in play.emitted
    assert b"Infinity" not in play.emitted
    assert [choice["logprobs"] for choice in choices_in(play.frames)] == [
        {"content": [{"token": "x", "logprob": -9999.0}]},
        None,
    ]


def test_E12_running_usage_passes_where_asked_for() -> None:
    options = {**ASKED, "continuous_usage_stats": True}
    play = Play(chat(stream=True, stream_options=options), NATIVE)
    events = [
        delta("x", role="assistant", top={"usage": usage(3, 1)}),
        delta(finish="stop", top={"usage": usage(3, 1)}),
    ]
    play.streams(0, *events, usage_chunk(3, 1), DONE)
    assert play.emitted == framed(*events, usage_chunk(3, 1), DONE)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("options", [{}, {"include_usage": False}])
def test_E8_running_usage_is_asked_for_only_together_with_usage(n: int, options: dict[str, bool]) -> None:
    """So vLLM takes it. The upstream shows it, because nproxy asks for usage for itself."""
    play = Play(chat(n=n, stream=True, stream_options={**options, "continuous_usage_stats": True}), FANOUT)
    for leg in range(n):
        told = {"usage": usage(3, 1)}
        play.streams(leg, delta("x", role="assistant", top=told), delta(finish="stop", top=told), usage_chunk(3, 1))
    assert play.finish == "ok" and not any(frame.get("usage") for frame in play.frames[:-1])


def test_E12_running_usage_of_one_choice_passes_with_its_details() -> None:
    options = {**ASKED, "continuous_usage_stats": True}
    play = Play(chat(stream=True, stream_options=options), NATIVE)
    told = usage(3, 1, prompt_tokens_details={"cached_tokens": 2})
    play.says(0, delta("x", role="assistant", top={"usage": told}))
    assert play.frames[-1]["usage"] == told


def test_E12_an_exact_wire_has_counted_all_its_choices() -> None:
    options = {**ASKED, "continuous_usage_stats": True}
    play = Play(chat(n=2, stream=True, stream_options=options), EXACT)
    events = [delta("x", index=at, role="assistant", top={"usage": usage(3, at + 1)}) for at in (0, 1)]
    events += [delta(index=at, finish="stop", top={"usage": usage(3, 2)}) for at in (0, 1)]
    play.streams(0, *events, usage_chunk(3, 2), DONE)
    assert play.emitted == framed(*events, usage_chunk(3, 2), DONE)


def test_E12_running_usage_of_several_prompts_is_that_of_all() -> None:
    """vLLM tells it for each choice by itself, also where one call carries several prompts."""
    options = {**ASKED, "continuous_usage_stats": True}
    play = Play(completion(prompt=["a", "b", "c"], stream=True, stream_options=options), NATIVE)
    play.says(0, *(text("x", index=at, usage=usage(3, told)) for at, told in ((0, 2), (1, 1), (2, 1))))
    play.streams(0, *(text("", index=at, finish="stop", usage=usage(3, 2)) for at in range(3)), usage_chunk(9, 6), DONE)
    told = [frame["usage"] for frame in play.frames[:-1]]
    assert told == [None, None, *(usage(9, completion) for completion in (4, 4, 5, 6, 6))]


def test_Q2_an_alias_is_shown_as_asked() -> None:
    play = Play(chat(stream=True), ALIASED)
    play.streams(0, *ODD, DONE)
    assert play.emitted == framed(*(event.replace(b'"model":"up"', b'"model":"m"') for event in ODD), DONE)
    play = Play(chat(), ALIASED)
    play.answers(0, answer("x"))
    assert play.reply["model"] == MODEL


def test_Q2_an_alias_is_shown_before_long_log_probabilities_as_they_came() -> None:
    rated = b'{"content": [%s]}' % b", ".join([b'{"token": "x", "logprob": -1.250}'] * 1000)
    whole = answer("x").replace(b'"finish_reason"', b'"logprobs": %b, "finish_reason"' % rated)
    play = Play(chat(logprobs=True), ALIASED)
    play.answers(0, whole)
    assert play.reply["model"] == MODEL
    assert b'"logprobs":%b,' % rated in play.respond.body


def test_Q2_without_an_alias_the_upstreams_name_stays() -> None:
    play = Play(chat(), NATIVE)
    play.answers(0, answer("x"))
    assert play.reply["model"] == "up"


def test_D2_role_null_and_repeated_roles_go() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.says(
        0, delta("", role="assistant"), delta("a", role="assistant"), delta("b", role=None), delta("", role="assistant")
    )
    assert [c["delta"] for c in choices_in(play.frames)] == [
        {"content": "", "role": "assistant"},
        {"content": "a"},
        {"content": "b"},
    ]
    assert len(play.frames) == 3


def test_D2_what_stands_beside_a_repeated_role_passes() -> None:
    """So llama.cpp tells how far it has read the prompt, with a role each time."""
    told = [{"total": 9, "processed": at} for at in (3, 6, 9)]
    role = {"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}
    play = Play(chat(stream=True, return_progress=True), NATIVE)
    play.says(0, *(chunk([role], prompt_progress=far) for far in told), ROLE, delta("a"))
    assert [frame.get("prompt_progress") for frame in play.frames] == [*told, None]
    said = [c["delta"] for c in choices_in(play.frames)]
    assert said == [{"role": "assistant", "content": None}, {"content": None}, {"content": None}, {"content": "a"}]


def test_D3_a_missing_role_is_put_first() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.says(0, delta("a"), delta("b"))
    assert [c["delta"] for c in choices_in(play.frames)] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
    ]
    assert {frame["id"] for frame in play.frames} == {"up-1"}


def test_D5_one_id_though_the_upstream_changes_it() -> None:
    play = Play(chat(stream=True), NATIVE)
    for i in range(4):
        play.says(0, delta("x", role="assistant" if i == 0 else None).replace(b"up-1", b"up-%d" % i))
    assert {frame["id"] for frame in play.frames} == {"up-0"}


@pytest.mark.parametrize("odd", [{"id": ""}, {"id": 7}, {"created": "5"}, {"created": None}, {"model": 3}], ids=str)
def test_D5_a_name_of_no_use_is_replaced_by_our_own(odd: dict[str, Any]) -> None:
    play = Play(chat(stream=True), NATIVE)
    play.streams(0, delta("x", role="assistant", top=odd), delta(finish="stop", top=odd), DONE)
    (key,) = odd
    assert {frame[key] for frame in play.frames[:-1]} == {{"id": ID, "created": CREATED, "model": MODEL}[key]}


def test_D7_D9_one_finish_one_done() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.streams(0, delta("x", role="assistant"), delta(finish="stop"), delta(finish="stop"), delta("y"), DONE, DONE)
    assert finishes(play.frames) == [0] and play.frames.count("[DONE]") == 1
    assert contents(play.frames) == {0: "x"}


def test_D7_what_follows_a_finish_is_dropped_and_counted_once() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.streams(0, delta("x", role="assistant", finish="stop"), delta("y", finish="stop"), delta("z"), DONE)
    assert contents(play.frames) == {0: "x"}
    assert [anomaly.kind for anomaly in play.anomalies] == ["text_after_finish"]


def test_D8_no_finish() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.streams(0, *ODD[:-1], DONE)
    assert play.finish == "cut" and "error" in play.frames[-1]


def test_D10_no_done() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.streams(0, *ODD)
    assert play.emitted == framed(*ODD, DONE)


def test_D4_n1_of_two_prompts() -> None:
    play = Play(completion(prompt=["a", "b"], stream=True), NATIVE)
    both = [{"index": i, "text": f"t{i}", "logprobs": None, "finish_reason": "stop"} for i in (1, 0)]
    play.streams(0, chunk(both, object="text_completion"), DONE)
    assert [len(frame["choices"]) for frame in play.frames[:-1]] == [1, 1]
    assert contents(play.frames) == {0: "t0", 1: "t1"}


def test_G3_repeated_tool_ids_go() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    play = Play(chat(stream=True), NATIVE)
    play.says(0, delta(role="assistant", tool_calls=[call]), delta(tool_calls=[call]))
    (first, second) = [c["delta"]["tool_calls"][0] for c in choices_in(play.frames)]
    assert first == call and "id" not in second


def test_K12_malformed() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.says(0, *ODD[:3], b'{"choices":[{"index":0,"delta":{"content":"x}}]}')
    assert play.finish == "malformed"


def test_R8_an_event_that_is_null_says_nothing() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.streams(0, b"null", *ODD, DONE)
    assert b"null\n" not in play.emitted
    assert play.finish == "ok"


def test_P3_data_of_several_lines_is_framed_as_one() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.streams(0, ODD[0].replace(b'"model"', b'\n"model"'), *ODD[1:], DONE)
    assert play.finish == "ok"
    assert contents(play.frames)[0].startswith("a")


def test_D5_empty_names_of_the_first_event_are_replaced_by_our_own() -> None:
    """Azure's first event has its results of prompt filters, and empty names."""
    nothing = {"id": "", "created": 0, "model": "", "object": ""}
    filters = json.dumps({**nothing, "choices": [], "prompt_filter_results": [{"a": 1}]}).encode()
    play = Play(chat(stream=True), NATIVE)
    play.streams(0, filters, delta("x", role="assistant"), delta(finish="stop"), DONE)
    assert play.frames[0]["prompt_filter_results"] == [{"a": 1}]
    for frame in play.frames[:-1]:
        assert [frame[key] for key in ("id", "created", "model")] == [ID, CREATED, MODEL]


@pytest.mark.parametrize("nothing", [{"delta": None}, {}], ids=["null", "absent"])
def test_R8_no_delta_is_an_empty_one(nothing: dict[str, Any]) -> None:
    play = Play(chat(stream=True), NATIVE)
    end = chunk([{"index": 0, **nothing, "finish_reason": "stop"}])
    play.streams(0, delta("x", role="assistant"), end, DONE)
    assert [*choices_in(play.frames)][-1]["delta"] == {}


def test_chunks_without_choices_pass() -> None:
    filters = chunk([], prompt_filter_results=[{"a": 1}])
    play = Play(chat(stream=True), NATIVE)
    play.streams(0, filters, delta("x", role="assistant"), delta(finish="stop"), DONE)
    assert play.emitted.startswith(framed(filters))


def test_K14_both_ways() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.answers(0, answer("hi", tokens=1))
    assert contents(play.frames) == {0: "hi"} and play.finish == "ok"
    play = Play(chat(), NATIVE)
    play.streams(0, delta("a", role="assistant"), delta("b"), delta(finish="stop"), DONE)
    assert play.reply["choices"][0]["message"]["content"] == "ab"


@pytest.mark.parametrize("indices", [[None], [0, 1], [1]], ids=["none", "one too many", "a wrong one"])
def test_D5_K14_a_body_in_answer_to_a_stream_has_one_id(indices: list[int | None]) -> None:
    said = [
        {"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
        | ({} if index is None else {"index": index})
        for index in indices
    ]
    play = Play(chat(stream=True, stream_options=ASKED), NATIVE)
    play.answers(0, answer(choices=said, id="own", created=7, usage=usage(3, 1)))
    frames = play.frames[:-1]
    assert frames[-1]["usage"] and len({(frame["id"], frame["created"]) for frame in frames}) == 1


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_reason_is_none(n: int, stream: bool) -> None:
    play = Play(chat(n=n, stream=stream), NATIVE)
    play.streams(0, *(delta("a", index=index, role="assistant", finish="") for index in range(n)), *FINISH[:n])
    reasons = [choice["finish_reason"] for choice in (choices_in(play.frames) if stream else play.reply["choices"])]
    assert set(reasons) == ({None, "stop"} if stream else {"stop"})


FINISH = [delta(index=index, finish="stop") for index in range(2)]


def multiline(event: bytes) -> bytes:
    """The same event over two lines of data."""
    return event.replace(b'"choices"', b'\n"choices"')


def test_P3_data_of_several_lines_keeps_all_it_says() -> None:
    events = [delta(said, stop_reason=None, top={"provider": "p"}) for said in "abcd"]
    play = Play(chat(stream=True), NATIVE)
    play.says(0, ROLE, *map(multiline, events))
    assert play.emitted == framed(ROLE, *(multiline(event).replace(b"\n", b" ") for event in events))
