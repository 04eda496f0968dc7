"""The breaker, as transcripts: what is counted, when it opens, who may try it, what closes it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nproxy.config import Breaker as Settings
from nproxy.upstreams.breaker import LONGEST_OPEN, Breaker, State

DEFAULT = Settings()


def opened(settings: Settings = DEFAULT, now: float = 0.0, *, silent: bool = False) -> Breaker:
    breaker = Breaker(settings)
    for _ in range(settings.in_a_row - 1):
        assert not breaker.failed(object(), now)
    assert breaker.failed(object(), now, silent=silent)
    return breaker


def trial(breaker: Breaker, now: float) -> object:
    """A request that tries it."""
    who = object()
    assert breaker.admits(who, now)
    breaker.called(who, now)
    return who


def test_five_in_a_row_open_it_and_one_that_went_well_begins_anew() -> None:
    breaker = Breaker(DEFAULT)
    for _ in range(4):
        assert not breaker.failed(object(), 0.0)
    breaker.went_well(0.0)
    for _ in range(4):
        assert not breaker.failed(object(), 0.0)
    assert breaker.state(0.0) is State.CLOSED and breaker.admits(object(), 0.0)
    assert breaker.failed(object(), 0.0)
    assert breaker.state(0.0) is State.OPEN and not breaker.admits(object(), 9.9)
    assert breaker.wait(4.0) == 6.0


def test_half_of_the_last_twenty_open_it_and_nineteen_do_not() -> None:
    breaker = Breaker(DEFAULT)
    for number in range(19):
        now = float(number)
        if number % 2:
            assert not breaker.failed(object(), now)
        else:
            breaker.went_well(now)
    assert breaker.failed(object(), 19.0), "10 of 20"


def test_requests_that_are_being_answered_speak_for_it() -> None:
    """Long answers: what fails at once is known long before what goes well."""
    breaker, answered = Breaker(DEFAULT), [object() for _ in range(30)]
    for who in answered:
        breaker.spoke(who, 0.0)
    for _ in range(19):
        assert not breaker.failed(object(), 1.0)
    for who in answered[1:]:
        breaker.call_over(who)
    assert breaker.failed(object(), 1.0), "20 of 21"


def test_those_that_are_cut_or_silent_do_not() -> None:
    cut, silent = Breaker(DEFAULT), Breaker(DEFAULT)
    requests = [object() for _ in range(5)]
    for who in requests:
        cut.spoke(who, 0.0)
        silent.spoke(object(), 0.0)
    assert [cut.failed(who, 1.0) for who in requests] == [False, False, False, False, True]
    assert [silent.failed(object(), 9.0) for _ in range(5)] == [False, False, False, False, True]


def test_what_is_older_than_the_window_is_forgotten() -> None:
    breaker = Breaker(DEFAULT)
    for _ in range(4):
        breaker.failed(object(), 0.0)
        breaker.went_well(0.0)
    for number in range(16):
        assert not (breaker.failed(object(), 40.0) if number % 2 else breaker.went_well(40.0))
    assert breaker.state(40.0) is State.CLOSED


def test_one_request_with_all_its_calls_tries_it_and_closes_it() -> None:
    breaker = opened()
    who = trial(breaker, 10.0)
    assert breaker.state(10.0) is State.HALF_OPEN
    assert breaker.admits(who, 10.0) and not breaker.admits(object(), 10.0)
    breaker.called(who, 10.0)
    breaker.went_well(11.0)
    assert breaker.state(11.0) is State.CLOSED and breaker.admits(object(), 11.0)
    for _ in range(4):
        assert not breaker.failed(object(), 12.0), "nothing is left of what was counted"


def test_a_trial_that_fails_opens_it_for_twice_as_long_up_to_five_minutes() -> None:
    breaker, now, waits = opened(), 0.0, []
    for _ in range(8):
        waits.append(breaker.wait(now))
        now += breaker.wait(now)
        assert breaker.failed(trial(breaker, now), now)
    assert waits == [10, 20, 40, 80, 160, LONGEST_OPEN, LONGEST_OPEN, LONGEST_OPEN]
    trial(breaker, now + LONGEST_OPEN)
    breaker.went_well(now)
    for _ in range(5):
        breaker.failed(object(), now)
    assert breaker.wait(now) == 10, "begun anew"


def test_a_trial_whose_answer_has_begun_lets_others_through_but_is_not_over() -> None:
    breaker = opened()
    who = trial(breaker, 10.0)
    other = object()
    breaker.spoke(other, 10.0)
    assert not breaker.admits(object(), 10.0), "another call has said something"
    breaker.call_over(other)
    breaker.spoke(who, 10.0)
    assert breaker.state(10.0) is State.CLOSED
    assert breaker.failed(who, 11.0), "one failure is enough until an answer has come whole"
    assert breaker.wait(11.0) == 20.0


def test_a_trial_whose_answer_has_begun_keeps_no_other_from_trying_it_when_it_opens_again() -> None:
    breaker = opened()
    long = trial(breaker, 10.0)
    breaker.spoke(long, 10.0)
    assert breaker.failed(object(), 20.0) and breaker.shut(39.9)
    assert not breaker.shut(40.0), "the answer that began at 10 may take minutes"
    trial(breaker, 40.0)
    assert not breaker.failed(long, 41.0), "its failure says nothing new"


def test_a_trial_that_left_without_a_verdict_lets_another_one_try() -> None:
    breaker = opened()
    who = trial(breaker, 10.0)
    breaker.called(who, 10.0)
    breaker.call_over(who)
    assert not breaker.admits(object(), 10.0), "it has another call here"
    breaker.call_over(who)
    other = trial(breaker, 10.0)
    assert not breaker.failed(who, 10.0) and breaker.failed(other, 10.0)


def test_a_verdict_that_comes_after_the_call_is_over_counts() -> None:
    breaker = opened()
    who = trial(breaker, 10.0)
    breaker.call_over(who)
    assert breaker.failed(who, 10.0) and breaker.wait(10.0) == 20.0


def test_requests_from_before_do_not_keep_it_open_and_close_it_where_they_went_well() -> None:
    breaker = opened()
    assert not breaker.failed(object(), 9.0)
    assert breaker.wait(9.0) == 1.0
    breaker.went_well(9.0)
    assert breaker.state(9.0) is State.CLOSED


def test_it_is_shut_until_the_next_request_may_try_it_and_while_one_does() -> None:
    breaker = Breaker(DEFAULT)
    assert not breaker.shut(0.0)
    breaker = opened()
    assert breaker.shut(9.9) and not breaker.shut(10.0), "on a quiet night nobody may come to close it"
    who = trial(breaker, 10.0)
    assert breaker.shut(60.0)
    breaker.spoke(who, 60.0)
    assert not breaker.shut(60.0)


def test_it_answers_unless_the_last_that_failed_was_met_with_silence() -> None:
    breaker = opened()
    assert breaker.answers and opened(silent=True).answers is False
    first, second = object(), object()
    for who in (first, second):
        breaker.called(who, 0.0)
    assert not breaker.failed(first, 1.0, silent=True) and not breaker.answers
    assert not breaker.failed(second, 1.0) and breaker.answers


def test_failures_of_a_last_resort_make_its_wait_no_longer_and_are_nothing_new() -> None:
    breaker = opened()
    for now in range(1, 10):
        who = object()
        assert breaker.admits(who, now, last_resort=True)
        breaker.called(who, now)
        assert not breaker.failed(who, now) and breaker.wait(now) == 10.0 - now
    assert breaker.failed(trial(breaker, 10.0), 10.0) and breaker.wait(10.0) == 20.0


def test_where_there_is_no_other_one_request_a_second_may_try() -> None:
    breaker = opened()
    assert not breaker.admits(object(), 0.9, last_resort=True)
    assert breaker.admits(object(), 1.0, last_resort=True) and not breaker.admits(object(), 1.0)
    who = object()
    breaker.called(who, 1.0)
    assert not breaker.admits(object(), 1.9, last_resort=True)
    assert not breaker.failed(who, 5.0, silent=True) and breaker.wait(5.0, last_resort=True) == 1.0
    assert breaker.wait(5.0) == 5.0, "it was tried before its time"


def test_there_a_shorter_wait_of_the_breaker_is_enough() -> None:
    breaker = opened(Settings(open=0.5))
    assert not breaker.admits(object(), 0.4, last_resort=True)
    assert breaker.admits(object(), 0.5, last_resort=True)


def test_there_nobody_waits_for_the_first_event_of_the_request_that_tries_it() -> None:
    """A whole answer says nothing for as long as it takes, and that may be a minute."""
    breaker = opened()
    slow = trial(breaker, 10.0)
    assert not breaker.admits(object(), 10.9, last_resort=True) and breaker.wait(10.5, last_resort=True) == 0.5
    assert breaker.admits(object(), 11.0, last_resort=True)
    assert not breaker.admits(object(), 99.0), "elsewhere there are others to go to"
    second = object()
    breaker.called(second, 11.0)
    assert breaker.admits(slow, 11.0) and breaker.admits(second, 11.0), "with all of their calls"
    assert not breaker.admits(object(), 11.9, last_resort=True)
    assert breaker.failed(second, 12.0), "one fails"
    breaker.spoke(slow, 13.0)
    assert breaker.state(13.0) is State.CLOSED, "the other one is being answered"


def test_one_that_is_known_to_be_back_is_tried_at_once() -> None:
    breaker = opened()
    breaker.relent()
    assert breaker.wait(0.0) == 0 and breaker.admits(object(), 0.0, last_resort=True)
    who = trial(breaker, 0.0)
    assert not breaker.admits(object(), 0.0)
    assert breaker.failed(who, 0.0) and breaker.wait(0.0) == 10


def test_without_settings_it_never_opens() -> None:
    breaker = Breaker(None)
    assert not any(breaker.failed(object(), 0.0) for _ in range(1000))
    breaker.went_well(0.0)
    assert breaker.state(0.0) is State.CLOSED


Step = tuple[float, str]


@given(st.lists(st.tuples(st.floats(0, 20), st.sampled_from(("ok", "bad", "call", "speak", "leave"))), max_size=200))
def test_whatever_happens_it_is_never_shut_for_good_and_lets_one_through_at_a_time(steps: list[Step]) -> None:
    breaker, now, trying = Breaker(Settings(in_a_row=2, of=4, open=1)), 0.0, list[object]()
    for seconds, what in steps:
        now += seconds
        if what == "call":
            who = object()
            if breaker.admits(who, now) and breaker.state(now) is not State.CLOSED:
                assert not trying
                breaker.called(who, now)
                trying = [who]
        elif what == "speak" and trying:
            breaker.spoke(trying[0], now)
        elif what == "leave" and trying:
            breaker.call_over(trying[0])
        elif what == "ok":
            breaker.went_well(now)
        elif what == "bad":
            breaker.failed(trying[0] if trying else object(), now)
        if breaker.state(now) is not State.HALF_OPEN or breaker.admits(object(), now):
            trying = []
    assert breaker.wait(now) <= LONGEST_OPEN
    if not trying:
        assert breaker.admits(object(), now + LONGEST_OPEN)
