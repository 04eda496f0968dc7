"""Continue: legs of several choices, each of which goes on by itself, and the answer around the text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.commands import Spent
from nproxy.choices.events import FailureKind
from tests.choices.conduct_player import (
    EXACT,
    NATIVE,
    body_of,
    chat,
    choices_in,
    completion,
    contents,
    continued,
)
from tests.choices.upstream_says import ROLE, STOP, delta, status, text, usage, usage_chunk


@pytest.mark.parametrize("done", [False, True])
def test_usage_of_a_call_for_several_choices_whose_work_others_take_over(done: bool) -> None:
    """Where it finished a choice it answers for that one, and it told nothing of it."""
    play = continued(chat(n=2, stream=True, stream_options={"include_usage": True}), NATIVE)
    play.breaks_off(0, delta("a", index=0, finish="stop" if done else None), delta("b", index=1))
    for number in sorted(int(name.partition(":")[2]) for name in play.timers if name.startswith("retry")):
        play.fires(f"retry:{number}")
        play.streams(number, delta("c"), STOP, usage_chunk(8, 1))
    assert play.finish == "ok"
    assert [frame["usage"] for frame in play.frames[:-1] if frame.get("usage")] == ([] if done else [usage(7, 4)])


@pytest.mark.parametrize("n", [1, 2])
def test_a_full_server_is_waited_for_though_there_is_a_fallback(n: int) -> None:
    """The client has read a part, so no other upstream can be asked, however many legs now bring the rest."""
    play = continued(chat(n=n, stream=True), NATIVE, fallback=True)
    play.breaks_off(0, *(delta("a", index=index) for index in range(n)))
    again = sorted(int(name.partition(":")[2]) for name in play.timers if name.startswith("retry"))
    for leg in again:
        play.fires(f"retry:{leg}")
    for leg in again:
        play.fails(leg, replace(status(429, retry_after=2.0), room="others"))
    assert not play.over


OPTIONS = {"include_usage": True, "continuous_usage_stats": True}


def test_tokens_of_choices_that_others_go_on_with_are_counted_once() -> None:
    """Those of the choice that was finished are its own call's; what was computed for the other one was spent."""
    play = continued(chat(n=2, stream=True, stream_options=OPTIONS), NATIVE)
    play.breaks_off(
        0,
        delta("a", index=0, finish="stop", top={"usage": usage(7, 1)}),
        delta("bcd", index=1, top={"usage": usage(7, 3)}),
    )
    play.fires("retry:1")
    play.streams(1, delta("e", top={"usage": usage(10, 1)}), STOP, usage_chunk(10, 2))
    told = [frame["usage"] for frame in play.frames[:-1] if frame["usage"]]
    assert told == [usage(7, 1), usage(7, 4), usage(7, 5), usage(7, 6)]
    (spent,) = play.of(Spent)
    assert (spent.upstream_prompt, spent.upstream_completion) == (17, 6)


def test_so_they_are_where_a_call_has_several_prompts() -> None:
    play = continued(completion(prompt=["p", "q"], stream=True, stream_options=OPTIONS), NATIVE)
    play.breaks_off(0, text("a", index=0, finish="stop", usage=usage(7, 1)), text("bcd", index=1, usage=usage(8, 3)))
    play.fires("retry:1")
    play.streams(1, text("e", finish="stop"), usage_chunk(11, 2))
    assert play.frames[-2]["usage"] == usage(15, 6)


def test_usage_that_tells_no_choice_apart_tells_nothing_of_those_that_were_finished() -> None:
    play = continued(chat(n=2, stream=True, stream_options=OPTIONS), NATIVE)
    play.breaks_off(0, delta("a", index=0, finish="stop"), delta("b", index=1), usage_chunk(7, 2))
    play.fires("retry:1")
    play.streams(1, delta("c"), STOP, usage_chunk(8, 1))
    assert [frame["usage"] for frame in play.frames[:-1] if frame["usage"]] == []


@pytest.mark.parametrize("capability", [NATIVE, EXACT], ids=["native", "exact"])
def test_each_choice_of_a_leg_goes_on_by_itself(capability: Capability) -> None:
    play = continued(chat(n=4, stream=True, seed=5, max_tokens=9), capability)
    play.breaks_off(
        0,
        *(delta("", index=index, role="assistant") for index in range(4)),
        delta("done", index=0, finish="stop"),
        delta("b", index=1),
        delta("c", index=2),
    )
    assert play.resumed == []
    for number in (1, 2, 3):
        play.fires(f"retry:{number}")
    bodies = {leg: body_of(play, play.open[leg]) for leg in play.open}
    assert [bodies[leg].get("n", 1) for leg in (1, 2, 3)] == [1, 1, 1]
    assert [bodies[leg]["seed"] for leg in (1, 2, 3)] == [6, 7, 8]
    assert [bodies[leg]["messages"][1:] for leg in (1, 2, 3)] == [
        [{"role": "assistant", "content": "b"}],
        [{"role": "assistant", "content": "c"}],
        [],
    ]
    assert [play.open[leg].attempt for leg in (1, 2, 3)] == [1, 1, 1]
    for leg, said in ((3, "d"), (1, "b2"), (2, "c2")):
        play.streams(leg, ROLE, delta(said), STOP)
    assert contents(play.frames) == {0: "done", 1: "bb2", 2: "cc2", 3: "d"} and play.finish == "ok"
    roles = [choice["index"] for choice in choices_in(play.frames) if choice["delta"].get("role")]
    assert sorted(roles) == [0, 1, 2, 3] and play.resumed == ["continue ok"] * 3


def test_those_that_go_on_by_themselves_have_the_attempts_that_were_left() -> None:
    play = continued(chat(n=2, stream=True), NATIVE)
    play.breaks_off(0, delta("a", index=0), delta("b", index=1))
    for number in (1, 2):
        play.fires(f"retry:{number}")
    play.breaks_off(1, delta("a2"))
    play.streams(2, delta("b2"), STOP)
    assert play.finish == FailureKind.CUT and contents(play.frames) == {0: "aa2", 1: "bb2"}
    assert "continue spent" in play.resumed and len(play.opened) == 3


def test_a_leg_of_which_one_choice_cannot_fails_as_a_whole() -> None:
    play = continued(chat(n=2, stream=True), NATIVE)
    play.breaks_off(0, delta("a", index=0), delta(reasoning="b", index=1))
    assert play.finish == FailureKind.CUT and play.resumed == ["continue impossible"]


def test_several_prompts_of_one_call() -> None:
    play = continued(completion(prompt=["p", "q"], n=1, stream=True))
    play.breaks_off(0, text("a", index=0), text("b", index=1))
    for number, prompt in ((1, "pa"), (2, "qb")):
        play.fires(f"retry:{number}")
        assert body_of(play, play.open[number])["prompt"] == prompt
        play.streams(number, text("c", finish="stop"))
    assert contents(play.frames) == {0: "ac", 1: "bc"} and play.finish == "ok"


def test_parameters_of_a_choice_s_own() -> None:
    own = [{"max_tokens": 5}, {"max_tokens": 9}]
    request = chat(n=2, stream=True, choice_params=own)
    play = continued(request)
    play.breaks_off(1, delta("a"))
    play.fires("retry:1")
    assert body_of(play, play.open[1])["max_tokens"] == 8
    both = continued(chat(n=2, stream=True, choice_params=own, max_completion_tokens=50, n_predict=50))
    both.breaks_off(0, delta("a"))
    both.fires("retry:0")
    assert body_of(both, both.open[0])["max_tokens"] == 4
    assert not {"max_completion_tokens", "n_predict"} & body_of(both, both.open[0]).keys(), "it has replaced them"
    exact = continued(request, EXACT)
    exact.breaks_off(0, delta("a"))
    assert exact.resumed == ["continue impossible"], "it reads them by the place of a choice"


def test_equal_choices_that_are_computed_once() -> None:
    play = continued(chat(n=3, stream=True, temperature=0), greedy="dedupe")
    play.breaks_off(0, ROLE, delta("a"))
    play.fires("retry:0")
    play.streams(0, delta("b"), STOP)
    assert contents(play.frames) == dict.fromkeys(range(3), "ab")


def test_a_relayed_stream_keeps_its_names() -> None:
    play = continued(chat(stream=True, stream_options={"include_usage": True}))
    play.breaks_off(0, ROLE.replace(b"up-1", b"up-first"), *(delta(c).replace(b"up-1", b"up-first") for c in "abcd"))
    play.fires("retry:0")
    play.streams(0, ROLE, *map(delta, "efghij"), STOP, usage_chunk(14, 6))
    assert contents(play.frames) == {0: "abcdefghij"} and {frame["id"] for frame in play.frames[:-1]} == {"up-first"}
    assert play.frames[-2]["usage"] == usage(10, 10)
