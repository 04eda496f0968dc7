"""K5, K13: another attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.commands import ChoiceFinished, Retried
from nproxy.choices.events import FailureKind
from nproxy.choices.retry import LONGEST_RETRY_AFTER_SECONDS, pause_seconds, retryable
from tests.choices.conduct_player import Play, chat, contents
from tests.choices.upstream_says import answer, delta, failure, status, usage_chunk

RETRYABLE = [
    failure(FailureKind.CONNECT),
    failure(FailureKind.CONNECT_TIMEOUT),
    failure(FailureKind.RESET),
    failure(FailureKind.STALE),
    failure(FailureKind.CUT),
    failure(FailureKind.MALFORMED),
    *(status(code) for code in (429, 502, 503, 504, 529)),
    replace(status(508), another=True),
]
FINAL = [
    *(failure(kind) for kind in (FailureKind.TIMEOUT, FailureKind.OVERSIZE)),
    *(status(code) for code in (400, 401, 403, 404, 408, 409, 422, 500, 501, 508)),
    *(replace(status(code), another=True) for code in (400, 500)),
    status(429, retry_after=LONGEST_RETRY_AFTER_SECONDS + 1),
]


@pytest.mark.parametrize("why", RETRYABLE, ids=lambda f: f"{f.kind}-{f.status}")
def test_what_is_worth_another_attempt(why: Any) -> None:
    assert retryable(why)


@pytest.mark.parametrize("why", FINAL, ids=lambda f: f"{f.kind}-{f.status}")
def test_what_is_not(why: Any) -> None:
    assert not retryable(why)
    play = Play(chat(), retries=1)
    play.fails(0, why)
    assert play.over and len(play.opened) == 1


def test_the_pause_is_jittered_doubles_and_has_an_end() -> None:
    why = status(503)
    assert pause_seconds(why, 0, 0.0) == 0.0
    assert pause_seconds(why, 0, 1.0) == 0.25
    assert pause_seconds(why, 2, 1.0) == 1.0
    assert pause_seconds(why, 30, 1.0) == 4.0
    assert pause_seconds(status(429, retry_after=3), 0, 1.0) == 3.0


def test_K5_B8_tried_again_with_its_seed_while_siblings_stream() -> None:
    play = Play(chat(n=2, stream=True, seed=5), retries=1)
    play.says(0, delta("x"))
    play.fails(1, status(503))
    assert play.of(Retried) == [Retried(1, FailureKind.STATUS)]
    assert play.timers["retry:1"] == 0.125
    play.fires("retry:1")
    again = play.opened[-1]
    assert (again.leg.number, again.leg.seed, again.attempt) == (1, 6, 1)
    play.streams(1)
    play.says(0, delta(finish="stop"))
    play.ends(0)
    assert contents(play.frames) == {0: "x", 1: "ab"}


def test_K5_the_attempts_are_counted() -> None:
    play = Play(chat(n=2), retries=2)
    for attempt in (1, 2):
        play.fails(1, FailureKind.CONNECT)
        play.fires("retry:1")
        assert play.opened[-1].attempt == attempt
    play.fails(1, FailureKind.CONNECT)
    play.fires("gather")
    assert play.respond.status == 502


def test_K5_a_replica_that_was_not_tried_yet_costs_no_attempt() -> None:
    """Where two of three replicas are gone, one attempt would end at the second one."""
    gone = replace(failure(FailureKind.CONNECT), another=True)
    play = Play(chat(n=2), retries=1, budget=lambda: False)
    for calls in (3, 4):
        play.fails(1, gone)
        assert len(play.opened) == calls and "retry:1" not in play.timers
    for leg in (0, 1):
        play.answers(leg, answer("y"))
    assert play.finish == "ok"
    assert play.of(Retried) == [Retried(1, FailureKind.CONNECT)] * 2


@pytest.mark.parametrize("kind", [FailureKind.CONNECT_TIMEOUT, FailureKind.DOWN])
def test_K5_one_that_is_slow_to_say_so_does(kind: FailureKind) -> None:
    play = Play(chat(), retries=1, budget=lambda: False)
    play.fails(0, replace(failure(kind), another=True))
    assert play.over and len(play.opened) == 1


def test_K5_nor_is_it_tried_without_retries() -> None:
    play = Play(chat(), retries=0)
    play.fails(0, replace(failure(FailureKind.CONNECT), another=True))
    assert play.over and len(play.opened) == 1


@pytest.mark.parametrize("code", [502, 503])
def test_K5_while_the_client_reads_a_leg_waits_for_a_server_that_is_not_ready(code: int) -> None:
    """Its request can no longer be refused, so no attempts are counted."""
    play = Play(chat(n=2, stream=True), retries=1)
    play.says(0, delta("x"))
    for attempt in (1, 2, 3):
        play.fails(1, status(code))
        play.fires("retry:1")
        assert len(play.opened) == 2 + attempt
    play.streams(1)
    play.says(0, delta(finish="stop"))
    play.ends(0)
    assert contents(play.frames) == {0: "x", 1: "ab"}


@pytest.mark.parametrize("code", [502, 503])
def test_K5_before_the_client_reads_it_is_told_that_the_server_is_not_ready(code: int) -> None:
    play = Play(chat(n=2, stream=True), retries=1)
    play.fails(1, status(code))
    play.fires("retry:1")
    play.fails(1, status(code))
    play.fires("gather")
    assert (play.respond.status, len(play.opened)) == (code, 3)


def test_K5_not_after_the_client_has_read_of_it() -> None:
    play = Play(chat(n=2, stream=True), retries=1)
    play.says(0, delta("", role="assistant"), delta("x"))
    play.fails(0, FailureKind.CUT)
    assert play.of(Retried) == []


@pytest.mark.parametrize("kind", ["cut", "timeout", "malformed"])
def test_K5_but_after_a_role_as_the_client_has_it_anyway(kind: FailureKind) -> None:
    play = Play(chat(n=2, stream=True), retries=1)
    play.says(0, delta("", role="assistant"))
    play.fails(0, kind)
    assert play.of(Retried) == [Retried(0, kind)] and play.timers["retry:0"] == 0.125
    play.fires("retry:0")
    play.streams(0)
    play.streams(1)
    assert contents(play.frames) == {0: "ab", 1: "ab"} and play.finish == "ok"


def test_K5_a_stream_that_is_folded_begins_anew_and_what_is_finished_stays() -> None:
    play = Play(chat(n=2), Capability(native_width=2, json_usage=False), retries=1)
    play.says(0, delta("lost"), delta("first", index=1), delta(finish="stop", index=1))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.streams(0, delta("new"), delta("late", index=1), delta(finish="stop"), usage_chunk(3, 4))
    assert [choice["message"]["content"] for choice in play.reply["choices"]] == ["new", "first"]
    assert play.reply["usage"]["completion_tokens"] == 4


def test_a_whole_answer_folded_from_a_stream_with_a_finish_in_every_piece_is_whole() -> None:
    play = Play(chat(n=2), Capability(native_width=2, json_usage=False))
    pieces = [delta(text, index=index, finish="stop") for text in ("Hel", "lo") for index in range(2)]
    play.streams(0, *pieces, usage_chunk(3, 4))
    assert [choice["message"]["content"] for choice in play.reply["choices"]] == ["Hello", "Hello"]
    assert len(play.of(ChoiceFinished)) == 2


def test_K5_an_empty_answer_is_tried_again() -> None:
    play = Play(chat(), retries=1)
    play.ends(0)
    play.fires("retry:0")
    play.answers(0, answer("x"))
    assert play.finish == "ok"


DIED = b'{"error":{"message":"died","code":500}}'
NOTHING_SAID = [("malformed", b"{"), ("in_band", DIED)]


@pytest.mark.parametrize(("kind", "said"), NOTHING_SAID)
@pytest.mark.parametrize("stream", [False, True])
def test_K5_a_first_event_that_says_nothing_is_made_good(kind: str, said: bytes, stream: bool) -> None:
    play = Play(chat(n=2, stream=stream), retries=1)
    play.says(0, said)
    assert play.of(Retried) == [Retried(0, FailureKind(kind))] and 0 not in play.open
    play.fires("retry:0")
    for leg in (0, 1):
        play.streams(leg)
    assert play.finish == "ok"


@pytest.mark.parametrize("body", [b"<html>", b'{"choices":[]}', DIED])
def test_K5_a_whole_answer_that_says_nothing_is_made_good_too(body: bytes) -> None:
    play = Play(chat(), retries=1)
    play.answers(0, body)
    play.fires("retry:0")
    play.answers(0, answer("x"))
    assert play.finish == "ok"


def test_K5_an_error_that_the_request_is_at_fault_for_is_not_asked_for_twice() -> None:
    play = Play(chat(stream=True), retries=1)
    play.says(0, b'{"error":{"message":"too long","code":400}}')
    assert play.over and play.of(Retried) == []


@pytest.mark.parametrize("stream", [False, True])
def test_K13_the_client_need_not_retry_too(stream: bool) -> None:
    play = Play(chat(n=2, stream=stream), retries=1)
    play.fails(0, status(502))
    play.fires("retry:0")
    play.fails(0, status(502))
    play.fires("gather")
    assert play.headers["x-should-retry"] == "false"


def test_K13_the_budget_is_spent() -> None:
    play = Play(chat(n=2), retries=1, budget=lambda: False)
    play.fails(0, status(502))
    play.fires("gather")
    assert play.headers["x-should-retry"] == "false" and len(play.opened) == 2


def test_K13_a_limit_on_the_clients_requests_wants_a_longer_pause() -> None:
    play = Play(chat(), retries=1)
    play.fails(0, status(429))
    play.fires("retry:0")
    play.fails(0, status(429))
    assert play.respond.status == 429 and "x-should-retry" not in play.headers


@pytest.mark.parametrize("code", [429, 500, 503, 529])
def test_K2_the_wait_that_a_server_asks_for_is_told_with_any_status(code: int) -> None:
    play = Play(chat(), retries=0)
    play.fails(0, replace(status(code), retry_after=29.5))
    assert play.respond.status == code and play.headers["retry-after"] == "30"


def test_K13_without_retries_the_client_may_try() -> None:
    play = Play(chat(n=2), retries=0)
    play.fails(0, status(503))
    play.fires("gather")
    assert "x-should-retry" not in play.headers


def test_a_stale_socket_is_forgiven_once_and_free() -> None:
    asked = []

    def budget() -> bool:
        asked.append(1)
        return True

    play = Play(chat(n=2), retries=1, budget=budget)
    play.fails(0, FailureKind.STALE)
    assert play.opened[-1].attempt == 1 and asked == []
    play.fails(0, FailureKind.STALE)
    assert "retry:0" in play.timers and asked == [1]


def test_no_other_leg_is_tried_again_once_the_request_has_failed() -> None:
    play = Play(chat(n=3), retries=1)
    play.fails(0, status(500))
    play.fails(1, status(503))
    assert play.of(Retried) == []


def test_a_leg_that_pauses_is_dropped_when_another_fails() -> None:
    play = Play(chat(n=3, stream=True), retries=1)
    play.says(2, delta("x"))
    play.fails(0, status(503))
    play.fails(1, status(400))
    play.streams(2)
    assert play.finish == "status"
    assert len(play.opened) == 3
