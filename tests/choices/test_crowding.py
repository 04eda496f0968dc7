"""More calls at once than the upstream has room for: those that it refuses wait for the others to end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nproxy.choices.commands import OpenLeg, Retried
from tests.choices.tutil import FANOUT, Play, chat
from tests.choices.upstream_says import answer, status


def refused(n: int = 4, code: int = 503, retries: int = 1) -> Play:
    """Of n calls the first two are taken; the others have no attempt left."""
    play = Play(chat(n=n, seed=1), FANOUT, retries=retries)
    for attempt in range(retries + 1):
        for leg in range(2, n):
            if attempt:
                play.fires(f"retry:{leg}")
        for leg in range(2, n):
            play.fails(leg, status(code))
    return play


def opened(play: Play) -> list[tuple[int, int]]:
    return [(command.leg.number, command.attempt) for command in play.of(OpenLeg)]


@pytest.mark.parametrize("code", [429, 503, 529])
def test_what_is_refused_is_called_when_others_have_ended(code: int) -> None:
    play = refused(code=code)
    assert opened(play)[4:] == [(2, 1), (3, 1)] and not play.over
    play.answers(1, answer("b"))
    assert opened(play)[6:] == [(2, 2)], "one in its place, the lowest first"
    play.answers(0, answer("a"))
    assert opened(play)[6:] == [(2, 2), (3, 2)]
    play.answers(3, answer("d"))
    play.answers(2, answer("c"))
    assert [choice["message"]["content"] for choice in play.reply["choices"]] == ["a", "b", "c", "d"]
    assert play.of(Retried) == [Retried(leg, "status") for leg in (2, 3, 2, 3)]
    assert [anomaly.kind for anomaly in play.anomalies] == ["crowded"]


def test_room_that_is_given_back_behind_the_answer_is_knocked_for_twice() -> None:
    """A limiter in front of a server counts a call until its connection has been read, or longer."""
    play = refused()
    play.answers(1, answer("b"))
    play.fails(2, status(503))
    assert play.timers["retry:2"] == 0.375 and opened(play)[6:] == [(2, 2)], "nobody else knocks meanwhile"
    play.fires("retry:2")
    assert opened(play)[7:] == [(2, 3)]
    play.answers(2, answer("c"))
    assert opened(play)[8:] == [(3, 2)], "there is room for two still"


def test_a_refusal_without_such_an_end_leaves_room_for_fewer() -> None:
    play = refused()
    play.answers(1, answer("b"))
    play.fails(2, status(503))
    play.fires("retry:2")
    play.fails(2, status(503))
    assert opened(play)[6:] == [(2, 2), (2, 3)]
    play.answers(0, answer("a"))
    assert opened(play)[8:] == [(2, 4)], "by itself"
    play.answers(2, answer("c"))
    assert opened(play)[9:] == [(3, 2)]


def test_it_fails_where_nobody_is_beside_it_and_nobody_has_ended() -> None:
    play = refused()
    play.answers(0, answer("a"))
    play.answers(1, answer("b"))
    play.answers(2, answer("c"))
    play.fails(3, status(503))
    assert not play.over and play.timers["retry:3"] == 0.375
    play.fires("retry:3")
    play.fails(3, status(503))
    assert play.over and play.respond.status == 503


def test_a_lone_leg_waits_for_nobody() -> None:
    play = Play(chat(), FANOUT, retries=1)
    play.fails(0, status(503))
    play.fires("retry:0")
    play.fails(0, status(503))
    assert play.over


def test_where_another_replica_has_room_nobody_waits_as_long_as_this_one_asks() -> None:
    play = Play(chat(n=2, seed=1), FANOUT, retries=1)
    elsewhere = replace(status(429), retry_after=3600.0, elsewhere=True)
    play.fails(1, elsewhere)
    play.fires("retry:1")
    play.fails(1, elsewhere)
    play.answers(0, answer("a"))
    assert opened(play) == [(0, 0), (1, 0), (1, 1), (1, 2)]


def test_it_comes_no_sooner_than_it_was_told() -> None:
    play = Play(chat(n=2, seed=1), FANOUT, retries=1)
    later = replace(status(429), retry_after=3.0)
    play.fails(1, later)
    play.fires("retry:1")
    play.fails(1, later)
    assert play.timers["retry:1"] == 3.0
    play.fires("retry:1")
    assert opened(play) == [(0, 0), (1, 0), (1, 1)]
    play.answers(0, answer("a"))
    assert opened(play)[3:] == [(1, 2)]


@pytest.mark.parametrize("failure", [status(500), status(502), replace(status(429), retry_after=11.0)])
def test_other_failures_are_not_about_room(failure: object) -> None:
    play = Play(chat(n=2), FANOUT, retries=1)
    play.fails(1, failure)  # type: ignore[arg-type]
    if "retry:1" in play.timers:
        play.fires("retry:1")
        play.fails(1, failure)  # type: ignore[arg-type]
    play.fires("gather")
    assert play.over and play.respond.status >= 429


def test_nobody_waits_where_nothing_is_to_be_tried_again() -> None:
    play = Play(chat(n=2), FANOUT, retries=0)
    play.fails(1, status(503))
    play.fires("gather")
    assert play.over and play.respond.status == 503
