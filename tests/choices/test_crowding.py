"""More calls at once than the upstream has room for: those that it turns away wait at the gate for others to end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nproxy.choices.commands import FallBack, OpenLeg, Retried
from nproxy.choices.events import Failure, FailureKind
from tests.choices.conduct_player import FANOUT, NATIVE, Play, chat, contents, replayed
from tests.choices.upstream_says import DONE, ROLE, STOP, answer, delta, status


def full(room: Any = "siblings", code: int = 429) -> Failure:
    return replace(status(code), room=room)


def opened(play: Play) -> list[tuple[int, int, bool]]:
    return [(command.leg.number, command.attempt, command.waits) for command in play.of(OpenLeg)]


@pytest.mark.parametrize("code", [429, 503, 529])
@pytest.mark.parametrize("room", ["siblings", "others"])
def test_what_is_turned_away_is_to_wait_for_room_and_that_is_no_attempt(room: str, code: int) -> None:
    play = Play(chat(n=2, seed=1), FANOUT, retries=1)
    for _ in range(5):
        play.fails(1, full(room, code))
    assert opened(play) == [(0, 0, False), (1, 0, False), *((1, attempt, True) for attempt in range(1, 6))]
    assert not play.timers and play.of(Retried) == [Retried(1, FailureKind.STATUS)] * 5
    play.fails(1, FailureKind.RESET)
    play.fires("retry:1")
    assert opened(play)[-1] == (1, 6, False), "its attempt is there still, and a retry for another reason does not wait"
    play.answers(1, answer("b"))
    play.answers(0, answer("a"))
    assert [choice["message"]["content"] for choice in play.reply["choices"]] == ["a", "b"]
    assert [anomaly.kind for anomaly in play.anomalies] == ["crowded"]


def test_another_replica_is_tried_before() -> None:
    play = Play(chat(n=2, seed=1), FANOUT, retries=1)
    play.fails(1, full("elsewhere"))
    play.fires("retry:1")
    assert opened(play)[2:] == [(1, 1, False)]
    play.fails(1, full("elsewhere"))
    assert opened(play)[3:] == [(1, 2, True)]


def test_a_resume_that_waits_for_room_has_not_failed() -> None:
    play = replayed(retries=3)
    play.breaks_off(0, ROLE, delta("Hel"))
    play.fires("retry:0")
    for _ in range(3):
        play.fails(0, full("others"))
    play.streams(0, ROLE, delta("Hello"), STOP, DONE)
    assert play.resumed == ["replay ok"] and contents(play.frames) == {0: "Hello"}


def test_it_fails_where_there_is_none_and_has_been_tried_again_by_then() -> None:
    play = Play(chat(), FANOUT, retries=1)
    play.fails(0, full("others"))
    play.fails(0, full(""))
    assert play.over and play.respond.status == 429
    play = Play(chat(), FANOUT, retries=1)
    play.fails(0, full("others", 503))
    play.fails(0, full("", 503))
    assert ("x-should-retry", "false") in play.respond.headers


def test_where_nobody_waited_it_is_tried_again_once() -> None:
    play = Play(chat(), FANOUT, retries=1)
    play.fails(0, full(""))
    play.fires("retry:0")
    play.fails(0, full(""))
    assert play.over and opened(play) == [(0, 0, False), (0, 1, False)]


@pytest.mark.parametrize(("room", "waits"), [("siblings", True), ("others", False), ("elsewhere", False)])
def test_another_upstream_comes_first_where_nothing_is_being_answered(room: str, waits: bool) -> None:
    play = Play(chat(n=2, seed=1), FANOUT, retries=1, fallback=True)
    play.fails(0, full(room))
    assert opened(play)[2:] == ([(0, 1, True)] if waits else [])
    if not waits:
        play.fires("retry:0")
        play.fails(0, full(room))
        play.fires("gather")
        assert play.of(FallBack)


def test_not_once_the_client_has_read_something() -> None:
    play = Play(chat(n=2, seed=1, stream=True), FANOUT, retries=1, fallback=True)
    play.says(1, delta("x"))
    play.fails(0, full("others"))
    assert opened(play)[2:] == [(0, 1, True)]
    play.streams(0, delta("a"), STOP, DONE)
    play.says(1, STOP, DONE)
    play.ends(1)
    assert play.finish == "ok"


def test_a_call_for_several_choices_waits_too() -> None:
    play = Play(chat(n=4, seed=1), NATIVE, retries=1)
    play.fails(0, full("others", 503))
    assert opened(play)[1:] == [(0, 1, True)]


def test_nobody_waits_where_nothing_is_to_be_tried_again() -> None:
    play = Play(chat(n=2), FANOUT, retries=0)
    play.fails(1, full())
    play.fires("gather")
    assert play.over and play.respond.status == 429
