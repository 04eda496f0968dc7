"""A14, B6, Q6, R7, R10: what is refused is asked for in another way."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.commands import Learn
from nproxy.choices.events import Failure, FailureKind, LegFailed
from nproxy.choices.lessons import FieldRefused, Lacks, Lesson, NativeWidth
from nproxy.choices.remedies import named_width
from nproxy.openai.requests import Request
from tests.choices.conduct_player import MODEL, NATIVE, UNTESTED, Play, body_of, chat, completion
from tests.choices.upstream_says import DONE, answer, delta, status, text, usage, usage_chunk


def sent(play: Play) -> Any:
    """The body of the call that was made last."""
    return body_of(play, play.opened[-1])


REFUSALS = [
    (
        b'{"error":{"code":400,"message":"Field \'n\': Value must be between 1 <= value <= 2, but got 5","type":"t"}}',
        [2, 2, 1],
    ),
    (b'{"error":{"message":"n must be 1","param":"n"}}', [1] * 5),
    (b'{"error":{"message":"\'n\' : number must be at most 1","type":"t"}}', [1] * 5),
    (b'{"error":{"message":"Only one completion choice is allowed"}}', [1] * 5),
    (b'{"detail":"Invalid n value (currently only n = 1 is supported)"}', [1] * 5),
]


@pytest.mark.parametrize("code", [400, 422, 500, 501])
@pytest.mark.parametrize(("body", "widths"), REFUSALS)
def test_R7_a_refused_n_is_split_and_learned(body: bytes, widths: list[int], code: int) -> None:
    play = Play(chat(n=5, seed=10), UNTESTED)
    play.fails(0, status(code, body))
    legs = [opened.leg for opened in play.opened[1:]]
    assert [leg.width for leg in legs] == widths
    assert [leg.seed for leg in legs] == [10 + leg.offset for leg in legs]
    assert play.of(Learn) == []
    for leg in reversed(legs):
        play.answers(leg.number, answer(*(f"c{leg.offset + j}" for j in range(leg.width)), tokens=leg.width))
    assert [choice["message"]["content"] for choice in play.reply["choices"]] == [f"c{i}" for i in range(5)]
    assert play.reply["usage"]["completion_tokens"] == 5
    assert NativeWidth(5, widths[0]) in [command.lesson for command in play.of(Learn)]


@pytest.mark.parametrize(
    "wording",
    [
        "Input should be less than or equal to 8",  # pydantic
        "Input should be less than 9",
        "n must be at most 8, got 16",
        "n must be less than or equal to 8.",
        "n must not be greater than 8",
        "n should be no more than 8",
        "Maximum n is 8",
        "The maximum value of n is 8, got 16",
        "max n: 8",
        "Max number of choices is 8",
        "n is limited to 8",
        "n must be in [1, 8]",
        "n must be in the range 1 to 8",
        "'n' must be Between 1 and 8",
        "Value must be between 1 <= value <= 8, but got 16",
        "n = 16 exceeds the limit of 8",
        "The number of candidates must be from 1 (inclusive) to 9 (exclusive)",
        "n must be < 9",
        "n must satisfy 1 ≤ n ≤ 8",
        "n must be =< 8",
        "n must be equal or less than 8",
        "n must be less or equal to 8",
        "n must be no greater than 8",
        "n must be below 9",
        "n is capped at 8",
        "max=8 for n",
        "Range of n should be [1, 8]",
        "n must be 1..8",
        "n must be 1–8",
        "1-8 for n",
        "maximum value of `n` is 8",
        "n=16 exceeds max_n=8",
        "n (16) > max (8)",
    ],
)
def test_R7_the_limit_that_a_refusal_names_is_found(wording: str) -> None:
    assert named_width(wording, 16) == 8


@pytest.mark.parametrize(
    "wording",
    [
        "n must be 1",
        "n > 1 is not supported",
        "n must be at most 16",
        "n=16 is too many",
        "Maximum context length is 2048 tokens",
        "n must be greater than 0",
        "n must be at most " + "9" * 5000,
        "n must be less than " + "9" * 5000,
        "n is not supported since 2026-1-8",
        "n must be 1, -8 was given",
    ],
)
def test_R7_no_limit_is_read_into_other_numbers(wording: str) -> None:
    assert named_width(wording, 16) is None


@pytest.mark.parametrize(
    ("body", "widths"),
    [
        # DashScope's form, with the wording of its other ranges
        (b'{"error":{"message":"<400> InternalError.Algo.InvalidParameter: Range of n should be [1, 4]"}}', [4, 4]),
        (b'{"error":{"message":"n_cmpl cannot be greater than the number of slots, please increase -np"}}', [1] * 8),
        (b'{"error":{"message":"must be at most 4","param":"n_cmpl"}}', [4, 4]),
    ],
)
def test_R7_refusals_of_some_servers(body: bytes, widths: list[int]) -> None:
    play = Play(chat(n=8), UNTESTED)
    play.fails(0, status(400, body))
    assert [opened.leg.width for opened in play.opened[1:]] == widths


def test_R7_the_limit_of_a_server_of_fastapi_is_kept_to() -> None:
    body = (
        b'{"detail":[{"loc":["body","n"],"msg":"Input should be less than or equal to 8","input":16,"ctx":{"le":8}}]}'
    )
    play = Play(chat(n=16), UNTESTED)
    play.fails(0, status(422, body))
    assert [opened.leg.width for opened in play.opened[1:]] == [8, 8]


def test_Q6_a_refusal_teaches_nothing_until_the_narrower_legs_succeed() -> None:
    play = Play(chat(n=2), UNTESTED)
    play.fails(0, status(400, REFUSALS[1][0]))
    play.answers(1, answer("x"))
    play.gets(LegFailed(2, status(400)))
    assert play.respond.status == 400 and play.of(Learn) == []


@pytest.mark.parametrize(
    "message",
    [
        "n > 1 is not supported with tools",
        "n must be 1 when using tool calls",
        "n > 1 and tools exclude each other",
        "Only one completion choice is allowed if tools are given",
    ],
)
def test_Q6_a_refusal_that_names_a_condition_teaches_nothing(message: str) -> None:
    play = Play(chat(n=2, tools=[{"type": "function", "function": {"name": "f"}}]), UNTESTED)
    play.fails(0, status(400, json.dumps({"error": {"message": message, "param": None}}).encode()))
    for leg in (1, 2):
        play.answers(leg, answer("x"))
    assert play.finish == "ok" and play.of(Learn) == []


def test_Q6_a_short_greedy_answer_teaches_nothing() -> None:
    play = Play(chat(n=2, temperature=0), UNTESTED)
    for leg in (0, 1):
        play.answers(leg, answer("x"))
    assert play.finish == "ok" and play.of(Learn) == []
    play = Play(chat(n=2, temperature=0), UNTESTED)
    play.answers(0, answer("x", "x"))
    assert play.of(Learn) == [Learn(NativeWidth(2, 2))], "a whole one does"


@pytest.mark.parametrize(
    ("message", "width"),
    [
        ("it has a candidateCount value of 9 but the supported range is from 1 (inclusive) to 9 (exclusive).", 8),
        ("candidate_count must be in the range [1, 8].", 8),
        ("n must be between 1 and 8", 8),
        ("Multiple candidates is not enabled for this model", 1),
    ],
)
def test_R7_a_limit_as_googles_gemini_words_it(message: str, width: int) -> None:
    """Its errors are in a list."""
    play = Play(chat(n=9), UNTESTED)
    play.fails(0, status(400, json.dumps([{"error": {"code": 400, "message": message}}]).encode()))
    assert [opened.leg.width for opened in play.opened[1:]] == ([8, 1] if width == 8 else [1] * 9)


def test_A14_greedy_choices_of_a_server_that_refuses_them_together() -> None:
    play = Play(chat(n=3, temperature=0), NATIVE)
    play.fails(0, status(400, b'{"error":{"message":"n must be 1 when using greedy sampling, got 3."}}'))
    assert [opened.leg.width for opened in play.opened[1:]] == [1, 1, 1]
    for leg in (1, 2, 3):
        play.answers(leg, answer("x"))
    assert play.finish == "ok" and play.of(Learn) == []


@pytest.mark.parametrize(
    "error",
    [
        '{"message":"temperature must be non-negative, n/a here"}',
        '{"message":"max_tokens is too large: maximum is 5"}',
        '{"message":"best n is bad","param":"logprobs"}',
    ],
)
def test_a_400_about_something_else_is_the_clients(error: str) -> None:
    play = Play(chat(n=3), UNTESTED)
    play.fails(0, status(400, f'{{"error":{error}}}'.encode()))
    assert play.respond.status == 400


GREEDY = b"""{"message":"Greedy methods (do_sample != True) without beam search do not support
 `num_return_sequences` different than 1 (got 2).","object":"error"}""".replace(b"\n", b"")


@pytest.mark.parametrize("temperature", [0, None], ids=["greedy", "by default"])
@pytest.mark.parametrize("code", [400, 500])
def test_A14_a_refusal_of_n_for_being_greedy_teaches_nothing_of_n(code: int, temperature: int | None) -> None:
    play = Play(chat(n=2, temperature=temperature), UNTESTED)
    play.fails(0, status(code, GREEDY))
    for leg in (1, 2):
        play.answers(leg, answer("x"))
    assert play.finish == "ok" and play.of(Learn) == []


ONE = (delta("x", finish="stop"), usage_chunk(10, 1), DONE)
STREAMS_OF_N = Capability(native_width=None, width_seen=8)
"""`n: auto`, which has seen whole answers of eight choices."""


@pytest.mark.parametrize("capability", [UNTESTED, STREAMS_OF_N], ids=["untested", "seen"])
@pytest.mark.parametrize("kind", [FailureKind.CUT, FailureKind.RESET])
def test_Q6_a_stream_of_several_that_always_breaks_off_is_asked_for_one_by_one(
    kind: FailureKind, capability: Capability
) -> None:
    play = Play(chat(n=3, stream=True), capability, retries=1)
    play.fails(0, kind)
    play.fires("retry:0")
    assert [opened.leg.number for opened in play.opened] == [0, 0], "it may be an accident"
    play.fails(0, kind)
    assert [(opened.leg.offset, opened.leg.width) for opened in play.opened[2:]] == [(0, 1), (1, 1), (2, 1)]
    for leg in (1, 2, 3):
        assert play.of(Learn) == []
        play.streams(leg, *ONE)
    assert play.finish == "ok" and play.of(Learn) == [Learn(Lacks("stream_n"))]
    assert {frame["choices"][0]["index"] for frame in play.frames[:-1]} == {0, 1, 2}


def test_Q6_a_stream_of_several_without_any_choice_is_asked_for_one_by_one() -> None:
    play = Play(chat(n=2, stream=True), STREAMS_OF_N)
    play.streams(0, DONE)
    for leg in (1, 2):
        play.streams(leg, *ONE)
    assert play.finish == "ok" and play.of(Learn) == [Learn(Lacks("stream_n"))]


@pytest.mark.parametrize(
    ("request_", "capability"),
    [
        (chat(n=3, stream=True), NATIVE),
        (chat(n=3), STREAMS_OF_N),
        (chat(stream=True), STREAMS_OF_N),
        (chat(n=3, stream=True), replace(STREAMS_OF_N, stream_n=False)),
    ],
    ids=["as configured", "whole", "one", "one by one already"],
)
def test_Q6_other_answers_that_break_off_are_not_asked_for_one_by_one(
    request_: Request, capability: Capability
) -> None:
    play = Play(request_, capability)
    for opened in list(play.opened):
        if opened.leg.number in play.open:
            play.fails(opened.leg.number, FailureKind.CUT)
    assert play.finish == "cut" and play.of(Learn) == []


@pytest.mark.parametrize("capability", [UNTESTED, STREAMS_OF_N, NATIVE], ids=["untested", "seen", "as configured"])
def test_Q6_a_stream_that_finishes_some_of_its_choices_only_teaches_that_streams_take_no_n(
    capability: Capability,
) -> None:
    """LiteLLM."""
    play = Play(chat(n=2, stream=True), capability)
    play.streams(0, delta("a", index=0), delta("b", index=1), delta(finish="stop"), DONE)
    assert play.finish == "cut"
    assert play.of(Learn) == ([] if capability is NATIVE else [Learn(Lacks("stream_n"))])


@pytest.mark.parametrize(
    ("request_", "capability", "lessons"),
    [
        (chat(n=3, stream=True), STREAMS_OF_N, [Lacks("stream_n")]),
        (chat(n=3, stream=True), UNTESTED, [NativeWidth(3, 1)]),
        (chat(n=3, stream=True, temperature=0), STREAMS_OF_N, []),
        (chat(n=3), STREAMS_OF_N, [NativeWidth(3, 1)]),
        (chat(n=3, stream=True), replace(STREAMS_OF_N, width_seen=2), [NativeWidth(3, 1)]),
    ],
    ids=["stream", "untested", "greedy", "whole", "wider than seen"],
)
def test_Q6_one_choice_in_a_stream_where_several_came_whole(
    request_: Request, capability: Capability, lessons: list[Lesson]
) -> None:
    play = Play(request_, capability)
    if request_.stream:
        play.streams(0, *ONE)
    else:
        play.answers(0, answer("a"))
    assert [command.lesson for command in play.of(Learn)] == lessons


@pytest.mark.parametrize(
    ("stream", "json_usage", "legs"), [(True, True, 3), (False, True, 1), (False, False, 3)], ids=str
)
def test_Q6_streams_of_one_where_streams_take_no_n(stream: bool, json_usage: bool, legs: int) -> None:
    capability = replace(STREAMS_OF_N, stream_n=False, json_usage=json_usage)
    assert len(Play(chat(n=3, stream=stream), capability).opened) == legs


REFUSED_LISTS = [
    b'{"detail":"prompt must be a string."}',
    b'{"error":{"message":"cannot unmarshal array into Go struct field CompletionRequest.prompt of type string"}}',
    b'{"detail":[{"type":"string_type","loc":["body","prompt"],"msg":"Input should be a valid string"}]}',
    b'{"error":{"message":"expected a string, got a list","param":"prompt"}}',
]


@pytest.mark.parametrize("code", [400, 422, 500])
@pytest.mark.parametrize("refusal", REFUSED_LISTS)
def test_J4_a_refused_list_of_prompts_is_split_and_learned(refusal: bytes, code: int) -> None:
    play = Play(completion(prompt=["a", "b"], seed=10), UNTESTED)
    play.fails(0, status(code, refusal))
    assert [body_of(play, opened) for opened in play.opened[1:]] == [
        {"model": MODEL, "prompt": prompt, "seed": 10} for prompt in ("a", "b")
    ]
    for leg, said in ((2, "of b"), (1, "of a")):
        assert play.of(Learn) == []
        play.answers(leg, text(said, finish="stop", usage=usage(10, 4)))
    assert [choice["text"] for choice in play.reply["choices"]] == ["of a", "of b"]
    assert play.reply["usage"] == usage(20, 8)
    assert play.way.mode == "fanout"
    assert [a.kind for a in play.anomalies] == ["prompt_lists_refused"]
    assert play.of(Learn) == [Learn(FieldRefused("prompt_lists"))]


def test_J4_choices_that_are_missing_of_a_prompt_that_was_a_list_are_not_asked_for_as_a_list_again() -> None:
    play = Play(completion(prompt=["a"], n=3), NATIVE)
    play.fails(0, status(400, REFUSED_LISTS[0]))
    play.answers(1, text("x", finish="stop"))
    assert [body_of(play, opened)["prompt"] for opened in play.opened] == [["a"], "a", "a", "a"]
    for leg in (2, 3):
        play.answers(leg, text("y", finish="stop"))
    assert [choice["text"] for choice in play.reply["choices"]] == ["x", "y", "y"]


def test_J4_a_stream_of_prompts_that_are_split_has_one_id_and_usage_once() -> None:
    asked = completion(prompt=["a", "b"], stream=True, stream_options={"include_usage": True})
    play = Play(asked, UNTESTED)
    play.fails(0, status(400, REFUSED_LISTS[0]))
    for leg, said in ((1, "A"), (2, "B")):
        play.streams(leg, text(said, finish="stop"), usage_chunk(10, 4))
    *chunks, tail, done = play.frames
    assert [(c["choices"][0]["index"], c["choices"][0]["text"]) for c in chunks if c["choices"][0]["text"]] == [
        (0, "A"),
        (1, "B"),
    ]
    assert len({frame["id"] for frame in (*chunks, tail)}) == 1
    assert (tail["usage"], done) == (usage(20, 8), "[DONE]")


@pytest.mark.parametrize("prompt", ["a", [1, 2], [[1, 2], [3]]], ids=str)
def test_J4_other_prompts_are_not_asked_for_again(prompt: Any) -> None:
    play = Play(completion(prompt=prompt), UNTESTED)
    play.fails(0, status(400, REFUSED_LISTS[0]))
    assert play.respond.status == 400


def test_J4_a_prompt_that_is_too_long_is_the_clients() -> None:
    play = Play(completion(prompt=["a", "b"]), UNTESTED)
    play.fails(0, status(400, b'{"error":{"message":"maximum context length is 8; reduce the prompt"}}'))
    assert play.respond.status == 400


def test_J4_a_prompt_that_is_refused_by_itself_too_is_the_clients() -> None:
    play = Play(completion(prompt=["a"]), UNTESTED)
    for leg in (0, 1):
        play.fails(leg, status(400, REFUSED_LISTS[0]))
    assert play.respond.status == 400 and play.of(Learn) == []


def test_J4_a_refusal_of_one_prompt_that_was_sent_as_a_text_is_the_clients() -> None:
    play = Play(completion(prompt=["a"]), Capability(prompt_lists=False))
    play.fails(0, status(400, REFUSED_LISTS[0]))
    assert play.respond.status == 400 and len(play.opened) == 1


def test_B6_a_refused_seed_is_left_out() -> None:
    refused = status(400, b'{"error":{"message":"Unrecognized request argument supplied: seed"}}')
    play = Play(chat(n=2), retries=0)
    play.fails(0, refused)
    assert play.opened[-1].leg.omit == {"seed"} and play.opened[-1].attempt == 1
    play.fails(1, refused)
    for leg in (0, 1):
        play.answers(leg, answer("x"))
    assert play.finish == "ok"
    assert [a.kind for a in play.anomalies] == ["seed_refused"]
    assert play.of(Learn) == [Learn(FieldRefused("seed"))]


def test_B6_a_call_that_still_has_the_seed_confirms_no_refusal_of_it() -> None:
    play = Play(chat(n=2))
    play.fails(0, status(400, b'{"error":{"message":"bad","param":"seed"}}'))
    play.answers(1, answer("x"))
    assert play.of(Learn) == []
    play.answers(0, answer("x"))
    assert play.of(Learn) == [Learn(FieldRefused("seed"))]


def test_B6_a_waiting_leg_is_sent_without_it_at_once() -> None:
    play = Play(chat(n=2), Capability(parallel=1))
    play.fails(0, status(400, b'{"error":{"message":"bad","param":"seed"}}'))
    play.answers(0, answer("x"))
    assert play.opened[-1].leg.number == 1 and play.opened[-1].leg.omit == {"seed"}


TOO_LARGE = b'{"error":{"message":"seed must fit in a signed 32-bit integer, it is not supported","param":"seed"}}'
UNKNOWN = [
    b'{"error":{"message":"Unrecognized request argument supplied: seed"}}',
    b'{"error":{"message":"property \'seed\' is unsupported"}}',
    b'{"detail":[{"type":"extra_forbidden","loc":["body","seed"],"msg":"Extra inputs are not permitted"}]}',
    b'{"error":{"message":"This model does not support a seed","param":"seed"}}',
]


@pytest.mark.parametrize("refusal", [*UNKNOWN, TOO_LARGE])
@pytest.mark.parametrize(
    "request_",
    [chat(seed=4), chat(seed=2**40), chat(choice_params=[{"seed": 4}]), completion(prompt=["a", "b"], seed=4)],
    ids=["small", "large", "own", "prompts"],
)
def test_B6_at_one_choice_the_clients_own_seed_is_not_left_out(request_: Request, refusal: bytes) -> None:
    play = Play(request_)
    play.fails(0, status(400, refusal))
    assert play.respond.status == 400 and play.of(Learn) == []


@pytest.mark.parametrize("seed", [4, 2**31 - 1, 2**40, -7], ids=str)
@pytest.mark.parametrize("refusal", UNKNOWN)
def test_B6_a_seed_that_the_server_does_not_know_is_left_out_at_several_choices(refusal: bytes, seed: int) -> None:
    play = Play(chat(n=2, seed=seed))
    for leg in (0, 1):
        play.fails(leg, status(422, refusal))
        play.answers(leg, answer("x"))
    assert play.finish == "ok" and play.of(Learn) == [Learn(FieldRefused("seed"))]


@pytest.mark.parametrize("seed", [2**31 - 1, 2**32 - 1, 2**63 - 1], ids=["int32", "uint32", "int64"])
def test_B4_a_seed_beyond_the_servers_range_goes_on_from_0(seed: int) -> None:
    play = Play(chat(n=3, seed=seed))
    play.answers(0, answer("x"))
    for leg in (1, 2):
        play.fails(leg, status(400, TOO_LARGE))
        again = play.opened[-1]
        assert (again.leg.number, again.leg.seed, again.attempt) == (leg, leg - 1, 1)
        play.answers(leg, answer("x"))
    assert play.finish == "ok" and play.of(Learn) == [], "it says nothing of other seeds"
    assert {a.kind for a in play.anomalies} == {"seed_too_large"}


@pytest.mark.parametrize("own", [{"seed": 2**40}, {"seed": 3, "choice_params": [{"seed": 2**40}, {}]}])
def test_B6_a_value_of_the_clients_own_is_the_clients_to_mend(own: dict[str, Any]) -> None:
    play = Play(chat(n=2, **own))
    play.fails(0, status(400, TOO_LARGE))
    assert play.respond.status == 400 and play.reply["error"]["param"] == "seed"


def test_B6_a_seed_that_is_refused_within_31_bits_too_stays_refused() -> None:
    play = Play(chat(n=2, seed=2**31 - 1))
    for _ in range(2):
        play.fails(1, status(400, b'{"error":{"message":"bad value","param":"seed"}}'))
    assert play.respond.status == 400


def test_B6_a_refusal_on_a_condition_teaches_nothing() -> None:
    play = Play(chat(n=2, top_k=3))
    play.fails(0, status(400, b'{"error":{"message":"seed and top_k exclude each other"}}'))
    for leg in (0, 1):
        play.answers(leg, answer("x"))
    assert play.opened[-1].leg.omit == {"seed"} and play.finish == "ok" and play.of(Learn) == []


def test_refused_stream_options_of_our_own_are_left_out() -> None:
    refused = status(400, b'{"error":{"message":"stream_options is not supported"}}')
    play = Play(chat(stream=True))
    play.fails(0, refused)
    assert play.opened[-1].leg.omit == {"stream_options"}
    play.streams(0)
    assert play.of(Learn) == [Learn(FieldRefused("stream_options"))]
    play = Play(chat(stream=True, stream_options={"include_usage": True}))
    play.fails(0, refused)
    assert play.respond.status == 400


def test_a_field_is_left_out_once_and_then_the_refusal_stands() -> None:
    play = Play(chat(n=2))
    for _ in range(2):
        play.fails(0, status(400, b'{"error":{"message":"bad seed"}}'))
    assert play.respond.status == 400


@pytest.mark.parametrize("n", [1, 2])
def test_R10_a_refusal_without_a_word_may_be_about_the_request_id(n: int) -> None:
    play = Play(chat(n=n))
    for leg in range(n):
        play.gets(LegFailed(leg, replace(status(400), body=b"")))
        assert play.opened[-1].leg.omit == {"request_id"}
    for leg in range(n):
        play.answers(leg, answer("x"))
    assert play.of(Learn) == [Learn(FieldRefused("request_id"))]
    assert [a.kind for a in play.anomalies] == ["request_id_refused"]


def test_R10_a_refusal_whose_words_were_lost_teaches_nothing() -> None:
    play = Play(chat())
    play.fails(0, replace(status(400), body=b"", unread=True))
    assert play.respond.status == 400 and not play.of(Learn)


def test_R10_twice_without_a_word_it_stands() -> None:
    play = Play(chat())
    for _ in range(2):
        play.gets(LegFailed(0, replace(status(400), body=b"")))
    assert play.respond.status == 400 and play.of(Learn) == []


@pytest.mark.parametrize(("asked", "counted"), [({"seed": 4}, ["seed_omitted"]), ({}, [])])
def test_a_seed_that_is_omitted_by_configuration_is_counted(asked: dict[str, int], counted: list[str]) -> None:
    play = Play(chat(n=2, **asked), Capability(seed=False))
    assert [a.kind for a in play.anomalies] == counted


STREAM_REFUSALS = [
    status(500, b'{"error":{"code":500,"message":"Cannot use tools with stream","type":"server_error"}}'),
    status(
        400,
        b'{"object":"error","message":"`prompt_logprobs` are not available when `stream=True`.",'
        b'"type":"BadRequestError","param":"prompt_logprobs","code":400}',
    ),
    status(501, b'{"error":{"message":"streaming is not supported"}}'),
]


@pytest.mark.parametrize("refused", STREAM_REFUSALS, ids=["llama.cpp", "vLLM", "param"])
def test_N6_a_warming_leg_that_is_refused_as_a_stream_is_asked_for_whole(refused: Failure) -> None:
    play = Play(chat(n=2, prompt_logprobs=1), Capability(prefix_cache=True))
    assert sent(play)["stream"] is True
    play.fails(0, refused)
    assert not {"stream", "stream_options"} & sent(play).keys()
    for leg in (0, 1):
        play.answers(leg, answer("x", tokens=1))
    assert play.reply["usage"]["completion_tokens"] == 2 and play.of(Learn) == []
    assert [a.kind for a in play.anomalies] == ["stream_refused"]


def test_R4_calls_that_are_refused_as_streams_are_made_one_by_one() -> None:
    """Their whole answers would count one choice only."""
    play = Play(chat(n=2), Capability(None, json_usage=False))
    play.fails(0, STREAM_REFUSALS[0])
    assert [opened.leg.width for opened in play.opened[1:]] == [1, 1] and "stream" not in sent(play)
    assert [a.kind for a in play.anomalies] == ["stream_refused"]
    for leg in (1, 2):
        play.answers(leg, answer("x", tokens=3))
    assert play.reply["usage"]["completion_tokens"] == 6 and play.of(Learn) == []


def test_a_stream_that_the_client_asked_for_is_the_clients() -> None:
    for play in (Play(chat(n=2, stream=True), Capability(prefix_cache=True)), Play(chat(n=2))):
        play.fails(0, STREAM_REFUSALS[1])
        assert play.respond.status == 400


def test_what_is_refused_in_either_form_is_the_clients() -> None:
    play = Play(chat(n=2), Capability(prefix_cache=True))
    play.fails(0, STREAM_REFUSALS[2])
    play.fails(0, status(400, b'{"error":{"message":"no tools here","param":"tools"}}'))
    assert play.reply["error"]["param"] == "tools"
