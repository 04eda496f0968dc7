"""A sibling fails for good: what the client has begun to read is resumed all the same, and nothing else is called."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.events import Failure, FailureKind
from tests.choices.conduct_player import Play, chat, contents, continued, finishes, replayed
from tests.choices.upstream_says import DONE, NOBODY, ROLE, STOP, delta, status

Failing = Callable[[Play], object]


def fails(leg: int, why: FailureKind | Failure) -> Failing:
    return lambda play: play.fails(leg, why)


def fires(name: str) -> Failing:
    return lambda play: play.fires(name)


def lost(play: Play, leg: int) -> None:
    """A leg fails for good."""
    play.fails(leg, FailureKind.OVERSIZE)


cut, gone = fails(0, FailureKind.CUT), fails(1, FailureKind.OVERSIZE)
BEFORE = {
    "while it is answered": (gone, cut),
    "while it pauses": (cut, gone),
    "while it waits for a server": (cut, fires("retry:0"), fails(0, NOBODY), gone),
    "while it is called again": (cut, fires("retry:0"), gone, fails(0, FailureKind.CONNECT)),
}


@pytest.mark.parametrize("steps", BEFORE.values(), ids=BEFORE)
def test_a_leg_that_the_client_has_read_of_goes_on(steps: tuple[Failing, ...]) -> None:
    play = replayed(chat(n=2, stream=True), retries=2)
    play.says(0, ROLE, delta("Hel"))
    for step in steps:
        step(play)
    assert not play.over and not play.open
    play.fires("retry:0")
    play.streams(0, delta("Hello"), STOP, DONE)
    assert contents(play.frames) == {0: "Hello", 1: ""} and finishes(play.frames) == [0]
    assert play.finish == FailureKind.OVERSIZE and "It failed: oversize" in play.frames[-1]["error"]["message"]
    assert play.resumed[-1] == "replay ok"


def test_also_where_it_has_to_wait_for_its_turn() -> None:
    play = replayed(chat(n=3, stream=True), Capability(parallel=2))
    play.breaks_off(0, delta("Hel"))
    play.says(2, delta("x"))
    play.fires("retry:0")
    assert sorted(play.open) == [1, 2]
    lost(play, 1)
    assert sorted(play.open) == [0, 2]
    play.streams(2, STOP)
    play.streams(0, delta("Hello"), STOP)
    assert contents(play.frames) == {0: "Hello", 1: "", 2: "x"}


def test_several_wait_for_their_turn_in_their_order() -> None:
    play = replayed(chat(n=4, stream=True), Capability(parallel=1))
    play.breaks_off(0, ROLE)
    play.breaks_off(1, delta("b"))
    play.breaks_off(2, delta("c"))
    for leg in (0, 2, 1):
        play.fires(f"retry:{leg}")
    lost(play, 3)
    for leg, said in ((1, "b"), (2, "c")):
        assert list(play.open) == [leg]
        play.streams(leg, delta(said), STOP)
    assert finishes(play.frames) == [1, 2] and play.over


def test_what_has_brought_nothing_is_not_called_again() -> None:
    play = replayed(chat(n=5, stream=True), Capability(parallel=4))
    play.says(0, delta("a"))
    play.fails(1, FailureKind.CONNECT)
    play.breaks_off(2, ROLE)
    assert {"retry:1", "retry:2"} <= play.timers.keys() and sorted(play.open) == [0, 3, 4]
    lost(play, 3)
    play.fires("retry:1")
    play.fires("retry:2")
    play.fails(4, FailureKind.CUT)
    assert list(play.open) == [0]
    play.streams(0, STOP)
    assert play.over and len(play.opened) == 5


def test_nor_is_what_waits_for_its_first_call() -> None:
    play = replayed(chat(n=3, stream=True), Capability(parallel=2))
    play.says(0, delta("a"))
    lost(play, 1)
    assert list(play.open) == [0]
    play.streams(0, STOP)
    assert play.over and len(play.opened) == 2


def test_nor_is_a_leg_that_has_brought_whole_choices_and_nothing_of_others() -> None:
    play = replayed(chat(n=3, stream=True), Capability(native_width=2))
    play.breaks_off(0, delta("a", finish="stop"), delta("", index=1, role="assistant"))
    assert "retry:0" in play.timers
    lost(play, 1)
    assert play.over and finishes(play.frames) == [0]


def test_without_resume_nothing_is() -> None:
    play = replayed(chat(n=3, stream=True), resume="off")
    play.says(0, delta("a"))
    play.says(1, delta("b"))
    lost(play, 0)
    play.fails(1, FailureKind.CUT)
    play.streams(2)
    assert play.over and contents(play.frames) == {0: "a", 1: "b", 2: "ab"} and len(play.opened) == 3


def test_what_the_client_has_not_been_sent_is_not_resumed() -> None:
    """The first failure came before the stream began, and others are being weighed with it."""
    play = replayed(chat(n=3, stream=True))
    lost(play, 0)
    play.breaks_off(1, delta("never sent"))
    assert list(play.open) == [2] and "retry:1" not in play.timers
    play.fires("gather")
    assert play.respond.status == 502


def test_attempts_end_there_too() -> None:
    play = replayed(chat(n=2, stream=True))
    play.breaks_off(0, delta("a"))
    lost(play, 1)
    play.fires("retry:0")
    play.breaks_off(0, delta("ab"))
    assert play.over and play.resumed == ["replay failed", "replay spent"]


def test_another_answer_is_one_more_failure() -> None:
    play = replayed(chat(n=2, stream=True), retries=2)
    play.breaks_off(0, delta("a"))
    play.fails(1, status(422))
    play.fires("retry:0")
    play.says(0, delta("b"))
    assert play.over and play.frames[-1]["error"]["message"] == "says 422", "the one that the client can mend"


@pytest.mark.parametrize("first", [True, False], ids=["cut first", "cut then"])
def test_of_a_call_for_several_choices_those_that_were_begun_go_on(first: bool) -> None:
    play = continued(chat(n=4, stream=True), Capability(native_width=3))
    play.says(0, delta("done", finish="stop"), delta("b", index=1))
    if first:
        play.fails(0, FailureKind.CUT)
        lost(play, 1)
    else:
        lost(play, 1)
        play.fails(0, FailureKind.CUT)
    for timer in ("retry:2", "retry:3"):
        play.fires(timer)
    assert list(play.open) == [2], "the third choice had not been begun"
    play.streams(2, ROLE, delta("c"), STOP)
    assert contents(play.frames) == {0: "done", 1: "bc", 2: "", 3: ""} and finishes(play.frames) == [0, 1]
    assert play.finish == FailureKind.OVERSIZE and play.resumed == ["continue ok"]
