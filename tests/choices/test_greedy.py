"""A14, E9: several choices at temperature 0."""

from __future__ import annotations

from typing import Any

import pytest

from nproxy.choices.commands import ChoiceFinished, Spent
from nproxy.choices.compose import compose
from nproxy.choices.plan import Way, make_plan
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import ApiError
from tests.choices.conduct_player import (
    EXACT,
    FANOUT,
    MODEL,
    NATIVE,
    Play,
    chat,
    choices_in,
    completion,
    contents,
    dialect_request,
    drawing,
)
from tests.choices.upstream_says import DONE, answer, delta, text, usage, usage_chunk

EVERY = pytest.mark.parametrize("capability", [FANOUT, NATIVE, EXACT], ids=["fanout", "native", "exact"])
ASKED = {"include_usage": True}


@EVERY
def test_A14_dedupe_is_one_call_of_one_choice(capability: Any) -> None:
    request = chat(n=3, temperature=0, seed=5)
    play = Play(request, capability, greedy="dedupe")
    (opened,) = play.opened
    sent = compose(request, capability, opened.leg)
    assert b'"n"' not in bytes(sent) and b'"seed": 5' in bytes(sent)
    play.answers(0, answer("same", prompt=10, tokens=4))
    assert [(c["index"], c["message"]["content"]) for c in play.reply["choices"]] == [(i, "same") for i in range(3)]
    assert play.way == Way("fanout", 1)
    assert play.reply["model"] == MODEL


@EVERY
def test_E9_dedupe_tells_what_is_delivered_and_counts_what_was_computed(capability: Any) -> None:
    play = Play(chat(n=3, temperature=0), capability, greedy="dedupe")
    details = {"completion_tokens_details": {"reasoning_tokens": 2}, "prompt_tokens_details": {"cached_tokens": 8}}
    play.answers(0, answer("same", usage=usage(10, 4, **details)))
    assert play.reply["usage"] == {
        **usage(10, 12),
        "completion_tokens_details": {"reasoning_tokens": 6},
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    assert play.of(Spent) == [Spent(10, 12, 10, 4, prompt_saved=20)]
    assert [finished.index for finished in play.of(ChoiceFinished)] == [0, 1, 2]


@EVERY
@pytest.mark.parametrize("dialect", Dialect)
def test_A14_dedupe_streams(capability: Any, dialect: Dialect) -> None:
    say = delta if dialect is Dialect.CHAT else text
    play = Play(
        dialect_request(dialect, n=3, temperature=0, stream=True, stream_options=ASKED), capability, greedy="dedupe"
    )
    words = [say(word) for word in ("a", "b", "c", "d", "e")]
    play.streams(0, *words, say("", finish="stop"), usage_chunk(10, 5), DONE)
    assert contents(play.frames) == dict.fromkeys(range(3), "abcde")
    assert all(len(frame["choices"]) == 1 for frame in play.frames[:-2])
    assert play.frames[-2]["usage"] == usage(10, 15)
    indices = [choice["index"] for choice in choices_in(play.frames)]
    assert indices == [0, 1, 2] * (len(indices) // 3), "the n of each moment together, in order"


def test_E12_running_usage_counts_the_copies_too() -> None:
    options = {**ASKED, "continuous_usage_stats": True}
    play = Play(chat(n=2, temperature=0, stream=True, stream_options=options), greedy="dedupe")
    play.streams(
        0,
        delta("a", top={"usage": usage(10, 1)}),
        delta("b", top={"usage": usage(10, 2)}),
        delta(finish="stop"),
        usage_chunk(10, 2),
        DONE,
    )
    told = [frame["usage"]["completion_tokens"] for frame in play.frames[:-1] if frame["usage"]]
    assert told == [2, 2, 4, 4, 4]


def test_E12_dedupe_of_several_prompts_at_an_exact_wire_which_has_counted_both() -> None:
    options = {**ASKED, "continuous_usage_stats": True}
    asked = completion(prompt=["p", "q"], n=2, temperature=0, stream=True, stream_options=options)
    play = Play(asked, EXACT, greedy="dedupe")
    said = [
        text("x", index=at, finish=end, usage=usage(7, 2 * bool(end) + at + 1))
        for end in (None, "stop")
        for at in (0, 1)
    ]
    play.streams(0, *said, usage_chunk(7, 4), DONE)
    told = [frame["usage"] for frame in play.frames[:-1] if frame["usage"]]
    assert told == sorted(told, key=lambda one: one["completion_tokens"]) and told[-1] == usage(7, 8)
    assert {one["prompt_tokens"] for one in told} == {7}


def test_A14_dedupe_of_several_prompts() -> None:
    play = Play(completion(prompt=["p", "q"], n=2, temperature=0), greedy="dedupe")
    (opened,) = play.opened
    said = [{"index": i, "text": word, "finish_reason": "stop"} for i, word in enumerate("pq")]
    assert opened.leg.client_indices(1, 2) == [0, 1]
    play.answers(0, answer(choices=said, usage=usage(6, 4)))
    assert [choice["text"] for choice in play.reply["choices"]] == ["p", "p", "q", "q"]
    assert play.reply["usage"] == usage(6, 8)


@EVERY
@pytest.mark.parametrize("greedy", ["reject", "dedupe"])
@pytest.mark.parametrize("fields", [{"temperature": 0}, {"n": 3}, {"n": 3, "temperature": 0.1}])
def test_A14_other_requests_are_not_touched(capability: Any, greedy: Any, fields: dict[str, Any]) -> None:
    request = chat(**fields)
    assert make_plan(request, capability, drawing(), greedy) == make_plan(request, capability, drawing())


def test_A14_beams_differ_at_temperature_0() -> None:
    request = chat(n=3, temperature=0, use_beam_search=True)
    assert make_plan(request, NATIVE, drawing(), "dedupe").n == 3
    assert make_plan(request, NATIVE, drawing(), "reject").n == 3


@EVERY
def test_A14_reject(capability: Any) -> None:
    with pytest.raises(ApiError) as refused:
        make_plan(chat(n=3, temperature=0.0), capability, drawing(), "reject")
    assert (refused.value.status, refused.value.param) == (400, "n")
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(ApiError) as refused:
        make_plan(chat(best_of=3, temperature=0), capability, drawing(), "reject")
    assert (refused.value.status, refused.value.param) == (400, "best_of")
