"""No replica may be asked, and the client has read something: the legs that miss one wait for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nproxy.choices.commands import Resumed, Retried
from nproxy.choices.events import FailureKind
from nproxy.choices.recovery import LONGEST_WAIT_SECONDS
from tests.choices.conduct_player import FANOUT, NATIVE, Play, chat, contents, continued, replayed
from tests.choices.upstream_says import DONE, NOBODY, STOP, delta, failure, status


def cut(n: int = 1, retries: int = 1) -> Play:
    """A stream whose first leg has been cut."""
    play = replayed(chat(stream=True, n=n, seed=5), retries=retries)
    play.breaks_off(0, delta("Hel"))
    return play


def test_a_leg_that_is_to_go_on_waits_and_that_is_no_attempt() -> None:
    play = cut()
    for _ in range(3):
        play.fires("retry:0")
        play.fails(0, NOBODY)
        assert play.timers["retry:0"] == 1.125, "not all of those that wait come at the same moment"
    play.fires("retry:0")
    play.streams(0, delta("Hello"), STOP, DONE)
    assert contents(play.frames) == {0: "Hello"} and play.finish == "ok"
    assert [resumed.outcome for resumed in play.of(Resumed)] == ["ok"], "nothing was called in between"
    assert play.of(Retried) == [Retried(0, FailureKind.UNAVAILABLE)] * 3


def test_so_it_does_for_a_server_that_cannot_be_reached_for_longer_each_time() -> None:
    play, waits = cut(), []
    for _ in range(6):
        play.fires("retry:0")
        play.fails(0, FailureKind.CONNECT)
        waits.append(play.timers["retry:0"])
    assert waits == [0.125, 0.125, 0.125, 0.1875, 0.28125, 0.421875]
    play.fires("retry:0")
    play.streams(0, delta("Hello"), STOP, DONE)
    assert contents(play.frames) == {0: "Hello"} and play.finish == "ok"
    assert [resumed.outcome for resumed in play.of(Resumed)] == ["ok"]


def test_what_went_by_while_no_connection_came_about_is_a_part_of_the_wait() -> None:
    play, calls = cut(), 0
    while not play.over:
        play.fires("retry:0")
        play.fails(0, replace(failure(FailureKind.CONNECT_TIMEOUT), seconds=4.0))
        calls += 1
    assert calls == 3
    assert [resumed.outcome for resumed in play.of(Resumed)] == ["failed"], "once, in the end"


def test_so_it_does_for_one_that_is_there_but_not_ready() -> None:
    """llama.cpp's server answers 503 while it loads its model, nproxy 502 while its engine does."""
    play = cut()
    for code in (503, 502, 503):
        play.fires("retry:0")
        play.fails(0, status(code))
    play.fires("retry:0")
    play.streams(0, delta("Hello"), STOP, DONE)
    assert contents(play.frames) == {0: "Hello"} and play.finish == "ok"


def test_but_not_where_nothing_is_to_be_tried_again() -> None:
    play = replayed(chat(stream=True, n=2), retries=0)
    play.says(0, delta("Hel"))
    play.fails(1, FailureKind.CONNECT)
    play.says(0, delta("lo"), STOP, DONE)
    play.ends(0)
    assert play.over and "error" in play.frames[-1]


def test_so_does_a_sibling_that_has_said_nothing() -> None:
    play = cut(n=2)
    play.fails(1, NOBODY)
    assert not play.over and play.timers["retry:1"] == 1.125
    play.fires("retry:1")
    play.fails(1, replace(NOBODY, retry_after=LONGEST_WAIT_SECONDS))
    assert play.of(Resumed) == [], "it was not resumed, so nothing of that has failed"


def test_not_for_ever() -> None:
    play, waited = cut(retries=9), 0.0
    while not play.over:
        play.fires("retry:0")
        play.fails(0, NOBODY)
        waited += play.timers.get("retry:0", 0.0)
    assert waited <= LONGEST_WAIT_SECONDS < waited + 1.125
    assert "no server" in play.frames[-1]["error"]["message"]


def test_to_the_last_moment() -> None:
    play = cut()
    play.fires("retry:0")
    play.fails(0, replace(NOBODY, retry_after=LONGEST_WAIT_SECONDS - 0.125))
    assert play.timers["retry:0"] == LONGEST_WAIT_SECONDS
    play.fires("retry:0")
    play.fails(0, replace(NOBODY, retry_after=0.0))
    assert play.over


def test_no_replica_is_waited_for_that_will_be_there_too_late() -> None:
    play = cut()
    play.fires("retry:0")
    play.fails(0, replace(NOBODY, retry_after=LONGEST_WAIT_SECONDS + 0.125))
    assert play.over and "retry:0" not in play.timers


def test_so_does_a_part_of_a_call_whose_other_choices_go_on_by_themselves() -> None:
    play = continued(chat(n=2, stream=True), NATIVE)
    play.breaks_off(0, delta("a"), delta("b", index=1))
    for leg in (1, 2):
        play.fires(f"retry:{leg}")
        play.fails(leg, NOBODY)
    for leg, said in ((1, "c"), (2, "d")):
        play.fires(f"retry:{leg}")
        play.streams(leg, delta(said), STOP)
    assert contents(play.frames) == {0: "ac", 1: "bd"} and play.finish == "ok"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_has_read_nothing_is_told_at_once(stream: bool) -> None:
    play = Play(chat(stream=stream, n=2), FANOUT, retries=3, resume="replay")
    play.fails(0, NOBODY)
    play.fails(1, NOBODY)
    assert play.over and play.respond.status == 503
