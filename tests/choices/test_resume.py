"""Resuming: which failures are made good, and how often."""

from __future__ import annotations

import pytest

from nproxy.choices.commands import Anomaly, Retried
from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.replay import Transcript
from nproxy.choices.resume import recorder
from nproxy.choices.retry import resumable, retryable
from tests.choices.conduct_player import chat, contents, finishes, replayed
from tests.choices.upstream_says import DONE, ROLE, STOP, chunk, delta, failure, in_band, status

# ---- which failures


RESUMED = [
    *map(failure, (FailureKind.CUT, FailureKind.RESET, FailureKind.TIMEOUT, FailureKind.MALFORMED)),
    in_band({"message": "died"}),
]
NOT_RESUMED = [
    failure(FailureKind.OVERSIZE),
    failure(FailureKind.DIFFERS),
    failure(FailureKind.SHORT),
    status(503),
    in_band({"message": "no", "code": 400}),
]


@pytest.mark.parametrize("why", RESUMED, ids=lambda f: f.kind)
def test_the_upstream_s_faults_are_made_good(why: Failure) -> None:
    assert resumable(why) and retryable(why) is (why.kind is not FailureKind.TIMEOUT)
    play = replayed()
    play.says(0, ROLE, delta("Hel"))
    play.fails(0, why)
    assert not play.over and play.timers["retry:0"] == 0.125, "full jitter, as before a first event"
    play.fires("retry:0")
    play.streams(0, ROLE, delta("Hello"), STOP, DONE)
    assert contents(play.frames) == {0: "Hello"} and finishes(play.frames) == [0]
    assert play.resumed == ["replay ok"] and play.of(Retried) == []


@pytest.mark.parametrize("why", NOT_RESUMED, ids=lambda f: f.kind)
def test_others_are_not(why: Failure) -> None:
    assert not resumable(why) and retryable(why) is (why.kind is FailureKind.STATUS)
    play = replayed()
    play.says(0, ROLE, delta("Hel"))
    play.fails(0, why)
    assert play.over and "error" in play.frames[-1] and play.resumed == []


def test_what_a_chunk_shows_counts_too() -> None:
    play = replayed(retries=3)
    for broken in (b"{", b'{"error": {"code": 502}}'):
        play.says(0, ROLE, delta("Hel"), broken)
        assert not play.open, "the call is ended"
        play.fires("retry:0")
    play.says(0, delta("Hello"))
    play.ends(0)  # cleanly, without a reason
    play.fires("retry:0")
    play.streams(0, delta("Hello you"), STOP)
    assert contents(play.frames) == {0: "Hello you"}
    assert play.resumed == ["replay failed", "replay failed", "replay ok"]


def test_off_is_off() -> None:
    play = replayed(resume="off")
    play.breaks_off(0, ROLE, delta("Hel"))
    assert play.over and "error" in play.frames[-1] and play.resumed == []


def test_nothing_is_recorded_where_nothing_is_made_good() -> None:
    assert recorder(chat(stream=True), "off") is None and recorder(chat(), "replay") is None
    assert recorder(chat(stream=True), "replay") is Transcript


def test_a_cut_behind_every_finish_is_none() -> None:
    play = replayed()
    play.breaks_off(0, ROLE, delta("Hello"), STOP)
    assert play.finish == "ok" and Anomaly("cut_after_finish") in play.anomalies and play.resumed == []


def test_one_that_was_interrupted_first_gets_its_own_remedy() -> None:
    play = replayed(chat(n=2, stream=True), retries=2)
    play.says(0, ROLE, DONE)
    play.ends(0, beside=True)
    play.says(1, ROLE, delta("x"), DONE)
    play.ends(1, beside=True)
    assert play.of(Retried) == [Retried(0, FailureKind.INTERRUPTED)], "nothing of it was read"
    assert play.opened[-1].alone and "retry:1" in play.timers, "of the other something was"
    play.streams(0, delta("a"), STOP)
    play.fires("retry:1")
    assert play.opened[-1].alone
    play.streams(1, delta("xy"), STOP)
    assert contents(play.frames) == {0: "a", 1: "xy"}


def test_what_the_request_is_at_fault_for_does_not_begin_anew() -> None:
    play = replayed()
    play.says(0, ROLE)
    play.fails(0, FailureKind.OVERSIZE)
    assert play.over and play.of(Retried) == []


# ---- attempts


def test_the_same_call_again_under_its_number_and_seed() -> None:
    play = replayed(chat(n=2, stream=True, seed=5), retries=2)
    play.says(1, ROLE, delta("b"))
    for attempt in (1, 2):
        play.fails(1, FailureKind.CUT)
        play.fires("retry:1")
        opened = play.opened[-1]
        assert (opened.leg.number, opened.leg.seed, opened.attempt) == (1, 6, attempt)
        play.says(1, ROLE)
    play.streams(1, delta("bc"), STOP)
    play.streams(0)
    assert contents(play.frames) == {0: "ab", 1: "bc"} and play.finish == "ok"


@pytest.mark.parametrize(("retries", "budget"), [(0, True), (1, False)])
def test_attempts_and_budget_are_shared_with_retries(retries: int, budget: bool) -> None:
    play = replayed(chat(n=2, stream=True), retries=retries, budget=lambda: budget)
    play.breaks_off(0, ROLE, delta("x"))
    play.streams(1)
    assert play.resumed == ["replay spent"] and contents(play.frames)[1] == "ab"
    assert "It failed" in play.frames[-1]["error"]["message"], "siblings run to their end first"


def test_a_retry_before_leaves_one_less() -> None:
    play = replayed()
    play.fails(0, FailureKind.CONNECT)
    play.fires("retry:0")
    play.breaks_off(0, delta("x"))
    assert play.over and play.resumed == ["replay spent"]


def test_a_second_call_that_does_not_come_about_is_tried_again() -> None:
    play = replayed(retries=3)
    play.breaks_off(0, ROLE, delta("x"))
    for why in (failure(FailureKind.RESET), status(503)):
        play.fires("retry:0")
        play.fails(0, why)
    play.fires("retry:0")
    play.streams(0, delta("xy"), STOP)
    assert contents(play.frames) == {0: "xy"}
    assert play.resumed == ["replay failed"] * 2 + ["replay ok"]


def test_unknown_keys_that_stand_alone_come_once_however_many_calls_it_takes() -> None:
    alone = chunk([], tier="x")
    play = replayed(retries=2)
    play.breaks_off(0, alone, ROLE, delta("x"))
    play.fires("retry:0")
    play.fails(0, FailureKind.RESET)
    play.fires("retry:0")
    play.streams(0, alone, ROLE, delta("xy"), STOP, DONE)
    assert [frame["tier"] for frame in play.frames[:-1] if "tier" in frame] == ["x"]


def test_what_is_refused_is_not() -> None:
    play = replayed(retries=4)
    play.breaks_off(0, ROLE, delta("x"))
    play.fires("retry:0")
    play.fails(0, status(404))
    assert play.over and play.frames[-1]["error"]["message"] == "says 404"


def test_the_choices_that_came_where_a_part_will_do() -> None:
    play = replayed(chat(n=2, stream=True), partial=True)
    play.breaks_off(0, ROLE, delta("x"))
    play.fires("retry:0")
    play.streams(0, delta("y"), STOP)
    play.streams(1)
    assert play.finish == "partial" and contents(play.frames) == {0: "x", 1: "ab"}
    assert play.resumed == ["replay differs"]
