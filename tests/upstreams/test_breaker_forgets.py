"""The breaker, later in a long life: what it forgets, and who is no trial any more, or not yet."""

from __future__ import annotations

import pytest

from nproxy.config import Breaker as Settings
from nproxy.upstreams.breaker import FRESH_SECONDS, Breaker, State

SETTINGS = Settings()
EARLY, LATE = 1.0, 1_000_000.0
"""A clock that runs since the machine was started; at first its whole life is shorter than the window."""
WINDOW = SETTINGS.window


def opened(now: float = LATE) -> Breaker:
    """Opened by failures in a row."""
    breaker = Breaker(SETTINGS)
    for _ in range(SETTINGS.in_a_row):
        breaker.failed(object(), now)
    assert breaker.state(now) is State.OPEN
    return breaker


def opened_by_share(now: float = LATE) -> Breaker:
    """Opened by half of its requests, with one failure in a row."""
    breaker = Breaker(SETTINGS)
    for _ in range(SETTINGS.of // 2):
        assert breaker.state(now) is State.CLOSED
        breaker.went_well(now)
        breaker.failed(object(), now)
    assert breaker.state(now) is State.OPEN
    return breaker


def trial(breaker: Breaker, now: float) -> object:
    """A request that tries it."""
    who = object()
    assert breaker.admits(who, now)
    breaker.called(who, now)
    return who


def test_a_share_is_of_the_window_however_late_it_is() -> None:
    opened_by_share(LATE)


def test_a_part_of_the_window_that_comes_again_begins_with_nothing() -> None:
    breaker = Breaker(SETTINGS)
    for _ in range(4):
        breaker.failed(object(), LATE)
        breaker.went_well(LATE)
    for _ in range(8):
        assert not breaker.failed(object(), LATE + WINDOW)
        breaker.went_well(LATE + WINDOW)


@pytest.mark.parametrize("now", [EARLY, LATE])
def test_what_was_counted_before_it_opened_is_forgotten_when_it_closes(now: float) -> None:
    breaker = opened_by_share(now)
    trial(breaker, now + 10)
    breaker.went_well(now + 10)
    for _ in range(SETTINGS.in_a_row - 1):
        assert not breaker.failed(object(), now + 10)


def test_one_failure_is_enough_after_a_trial_that_has_begun_however_it_was_opened() -> None:
    breaker = opened_by_share()
    who = trial(breaker, LATE + 10)
    breaker.spoke(who, LATE + 10)
    assert breaker.state(LATE + 10) is State.CLOSED
    assert breaker.failed(who, LATE + 10)


def test_answers_speak_for_it_as_long_as_something_comes() -> None:
    fresh, silent = Breaker(SETTINGS), Breaker(SETTINGS)
    for breaker, spoke in ((fresh, LATE - FRESH_SECONDS + 1), (silent, LATE - FRESH_SECONDS)):
        breaker.spoke(object(), spoke)
        for _ in range(SETTINGS.in_a_row):
            breaker.failed(object(), LATE)
    assert (fresh.state(LATE), silent.state(LATE)) == (State.CLOSED, State.OPEN)


def test_requests_that_were_called_while_it_was_closed_are_no_trials() -> None:
    breaker, before = Breaker(SETTINGS), object()
    breaker.called(before, LATE)
    for _ in range(SETTINGS.in_a_row):
        breaker.failed(object(), LATE)
    breaker.spoke(before, LATE + 1)
    assert breaker.state(LATE + 1) is State.OPEN, "that it is still answered says nothing of new requests"
    assert not breaker.failed(before, LATE + 1) and breaker.wait(LATE + 1) == 9.0


def test_those_that_tried_it_last_time_are_no_trials_of_this_time() -> None:
    breaker = opened()
    before = trial(breaker, LATE + 10)
    breaker.went_well(LATE + 10)
    for _ in range(SETTINGS.in_a_row):
        breaker.failed(object(), LATE + 11)
    assert not breaker.failed(before, LATE + 12) and breaker.wait(LATE + 12) == 9.0


def test_a_last_resort_waits_for_requests_not_for_their_calls() -> None:
    breaker = opened()
    who = trial(breaker, LATE + 10)
    breaker.called(who, LATE + 10.9)
    assert breaker.admits(object(), LATE + 11, last_resort=True)


def test_nor_for_one_that_left_without_a_verdict() -> None:
    breaker = opened()
    breaker.call_over(trial(breaker, LATE + 10))
    assert breaker.admits(object(), LATE + 10, last_resort=True)


def test_that_something_else_says_it_is_back_excuses_no_failure_of_the_trial() -> None:
    breaker = opened()
    who = trial(breaker, LATE + 10)
    breaker.spoke(who, LATE + 10)
    breaker.relent()
    assert breaker.failed(who, LATE + 11) and breaker.wait(LATE + 11) == 20.0


def test_what_operators_read_of_it() -> None:
    breaker = opened()
    assert breaker.state(LATE + 9.5) is State.OPEN
    assert breaker.state(LATE + 10) is State.HALF_OPEN, "the next request tries it"
    early = object()
    assert breaker.admits(early, LATE + 1, last_resort=True)
    breaker.called(early, LATE + 1)
    assert breaker.state(LATE + 1) is State.HALF_OPEN, "it is tried before its time"
    breaker.went_well(LATE + 2)
    assert breaker.state(LATE + 2) is State.CLOSED and breaker.wait(LATE + 2) == 0
