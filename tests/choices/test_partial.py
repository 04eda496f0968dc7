"""K3: where the operator allows it, the choices that came are better than none."""

from __future__ import annotations

from typing import Any

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.commands import CancelLeg, ChoiceFinished, Respond
from nproxy.choices.events import FailureKind
from nproxy.openai.dialect import Dialect
from tests.choices.conduct_player import EXACT, NATIVE, Play, chat, choices_in, completion, contents, dialect_request
from tests.choices.upstream_says import DONE, answer, delta, status, text, usage, usage_chunk


def partial(request: Any, capability: Any = None, **more: Any) -> Play:
    return Play(request, partial=True, **({} if capability is None else {"capability": capability}), **more)


def test_K3_never_the_default() -> None:
    play = Play(chat(n=2))
    play.answers(0, answer("x"))
    play.fails(1, FailureKind.TIMEOUT)
    assert play.respond.status == 504


def test_K3_the_choices_that_came_under_their_own_indices() -> None:
    play = partial(chat(n=3))
    play.fails(0, status(500))
    assert play.of(CancelLeg) == [] and not play.over
    play.answers(1, answer("b", prompt=10, tokens=4, id="second", x=1))
    play.answers(2, answer("c", prompt=10, tokens=5))
    assert [(c["index"], c["message"]["content"]) for c in play.reply["choices"]] == [(1, "b"), (2, "c")]
    assert play.headers["x-nproxy-partial"] == "2/3"
    assert play.reply["usage"] == usage(10, 9)
    assert play.reply["x"] == 1, "what is told once is told by the first leg that came"
    assert play.finish == "partial"
    assert ChoiceFinished(0, "error") in play.everything


def test_K3_a_whole_answer_says_nothing_of_parts() -> None:
    play = partial(chat(n=2), retries=1)
    play.fails(1, status(503))
    play.fires("retry:1")
    play.answers(0, answer("x"))
    play.answers(1, answer("y"))
    assert "x-nproxy-partial" not in play.headers and play.finish == "ok"


@pytest.mark.parametrize("stream", [False, True])
def test_K3_none_is_an_error(stream: bool) -> None:
    play = partial(chat(n=2, stream=stream))
    play.fails(0, FailureKind.TIMEOUT)
    play.fails(1, status(429, retry_after=3))
    assert play.respond.status == 429 and play.headers["retry-after"] == "3"
    assert "x-nproxy-partial" not in play.headers


@pytest.mark.parametrize("dialect", Dialect)
def test_K3_in_a_stream_every_choice_gets_a_reason(dialect: Dialect) -> None:
    say = delta if dialect is Dialect.CHAT else text
    play = partial(dialect_request(dialect, n=3, stream=True, stream_options={"include_usage": True}))
    play.says(1, say("cut off"))
    play.fails(0, status(500))
    play.fails(1, FailureKind.CUT)
    assert not play.over
    play.streams(2, say("whole"), say("", finish="stop"), usage_chunk(10, 2), DONE)
    *frames, tail, done = play.frames
    assert done == "[DONE]" and tail["choices"] == [] and tail["usage"] == usage(10, 2)
    reasons = {c["index"]: c for c in choices_in(frames) if c["finish_reason"]}
    assert {index: choice["finish_reason"] for index, choice in reasons.items()} == {0: "error", 1: "error", 2: "stop"}
    assert reasons[0]["error"] == {"message": "says 500", "type": "t", "param": None, "code": None}
    assert reasons[1]["error"]["code"] == "upstream_error"
    assert "error" not in reasons[2]
    assert contents(play.frames) == {0: "", 1: "cut off", 2: "whole"}
    assert all("error" not in frame for frame in frames), "SDKs raise on an event with an error at its top"
    if dialect is Dialect.CHAT:
        assert [c["index"] for c in choices_in(frames)][:3] == [0, 1, 2]
    assert play.finish == "partial"


def test_K6_a_stream_of_which_nothing_is_left_ends_in_an_error() -> None:
    play = partial(chat(n=2, stream=True))
    play.says(0, delta("x"))
    play.fails(0, FailureKind.CUT)
    play.fails(1, status(500))
    assert "error" in play.frames[-1] and "[DONE]" not in play.frames
    assert play.finish == "cut"


def test_K3_a_wide_leg_that_is_cut_leaves_what_was_finished() -> None:
    play = partial(chat(n=3), NATIVE)
    play.says(0, delta("a", finish="stop"), delta("b", index=1))
    play.fails(0, FailureKind.CUT)
    assert [c["index"] for c in play.reply["choices"]] == [0]
    assert play.headers["x-nproxy-partial"] == "1/3"
    assert "usage" not in play.reply, "no partial sum"


def test_K3_a_relay_that_is_cut() -> None:
    play = partial(chat(n=3, stream=True), EXACT)
    play.says(0, delta("", role="assistant"), delta("a", finish="stop"), delta("", role="assistant", index=1))
    play.fails(0, FailureKind.CUT)
    roles = [c["index"] for c in choices_in(play.frames) if c["delta"].get("role")]
    assert roles == [0, 1, 2]
    reasons = {c["index"]: c["finish_reason"] for c in choices_in(play.frames) if c["finish_reason"]}
    assert reasons == {0: "stop", 1: "error", 2: "error"}


def test_K3_waves_go_on_after_a_failure() -> None:
    play = partial(chat(n=3), Capability(parallel=1))
    play.fails(0, FailureKind.TIMEOUT)
    play.answers(1, answer("b"))
    play.answers(2, answer("c"))
    assert [c["index"] for c in play.reply["choices"]] == [1, 2]


def test_K3_prompt_lists_keep_their_places() -> None:
    play = partial(completion(prompt=["p", "q"], n=2))
    play.fails(0, status(500))
    said = [{"index": i, "text": word, "finish_reason": "stop"} for i, word in enumerate("pq")]
    play.answers(1, answer(choices=said))
    assert [(c["index"], c["text"]) for c in play.reply["choices"]] == [(1, "p"), (3, "q")]
    assert play.headers["x-nproxy-partial"] == "2/4"


def test_K3_J2_choices_of_which_it_is_unclear_whose_they_are_are_no_part_of_an_answer() -> None:
    """Two of three choices for each of two prompts, in a stream: the third may be of the second prompt."""
    play = partial(completion(prompt=["p", "q"], n=3, stream=True), EXACT)
    play.streams(0, *(text(str(at), index=at, finish="stop") for at in range(4)), DONE)
    assert "error" in play.frames[-1] and play.finish == "short"
    play = partial(completion(prompt=["p", "q"], n=3, stream=True), EXACT)
    play.says(0, *(text(str(at), index=at, finish="stop") for at in range(4)))
    play.fails(0, FailureKind.CUT)
    assert play.frames[-1] == "[DONE]", "all six were on their way"


def test_K3_a_choice_that_came_in_vain_before_it_was_lost_is_counted_once() -> None:
    """It is unclear whose the only choice is, so each prompt is asked for by itself; for the second one that fails."""
    unclear = Capability(native_width=None, json_usage=False)
    play = partial(completion(n=2, prompt=["p", "q"]), unclear)
    play.streams(0, text("a", index=3, finish="stop"), DONE)
    for leg in sorted(play.open):
        if play.open[leg].leg.prompt == 0:
            play.streams(leg, text("b", index=0, finish="stop"), text("b", index=1, finish="stop"))
        else:
            play.fails(leg, status(401))
    assert sorted(one.index for one in play.of(ChoiceFinished)) == [0, 1, 2, 3]


def test_K3_copies_of_what_came() -> None:
    play = partial(completion(prompt=["p", "q"], n=2, temperature=0), Capability(prompt_lists=False), greedy="dedupe")
    play.fails(0, status(500))
    play.answers(1, answer(choices=[{"index": 0, "text": "q", "finish_reason": "stop"}], usage=usage(3, 2)))
    assert [c["index"] for c in play.reply["choices"]] == [2, 3]
    assert play.reply["usage"] == usage(3, 4)
    assert len(play.of(Respond)) == 1
