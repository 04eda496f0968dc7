"""Where the upstream is at fault and the client has nothing yet, the request may go to another."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nproxy.choices.commands import Begin, ChoiceFinished, Emit, FallBack, Finish, Respond
from nproxy.choices.events import Failure, FailureKind, LegChunk, LegFailed
from nproxy.openai.wire import PING
from tests.choices.conduct_player import Play, chat
from tests.choices.upstream_says import answer, delta, failure, in_band, status

_LATE = ("timeout", "connect_timeout")
_OWN_KINDS = ("connect", "stale", "reset", "cut", "malformed", "interrupted", "short", "down", "unavailable", *_LATE)


OWN = [
    in_band({"message": "it died"}),
    *(failure(kind) for kind in FailureKind if kind in _OWN_KINDS),
    *(status(code) for code in (429, 502, 503, 504, 508, 529)),
    *(replace(status(code), own_key=True) for code in (401, 402, 403)),
    in_band({"message": "slow down", "code": 429}),
]
NOT_OWN = [
    in_band({"message": "no", "code": 400}),
    *(failure(kind) for kind in FailureKind if kind not in (*_OWN_KINDS, "status", "in_band")),
    *(status(code) for code in (400, 401, 402, 403, 404, 422, 500, 501)),
]


def fallen(play: Play) -> FailureKind | None:
    """What the conduct falls back for; it then says nothing to the client."""
    commands = play.of(FallBack)
    if not commands:
        return None
    assert len(commands) == 1 and not play.of(Respond)
    assert play.everything[-1] == Finish("fallback")
    _, end = commands[0].instead
    assert isinstance(end.outcome, FailureKind)
    return end.outcome


@pytest.mark.parametrize("why", OWN, ids=lambda f: f"{f.kind}-{f.status}")
@pytest.mark.parametrize("stream", [False, True])
def test_another_upstream_may_do_what_this_one_did_not(why: Failure, stream: bool) -> None:
    play = Play(chat(stream=stream), fallback=True)
    play.fails(0, why)
    if why.kind is FailureKind.STALE:  # its second attempt is free
        play.fails(0, why)
    assert fallen(play) == why.kind
    instead, _ = play.of(FallBack)[0].instead
    assert isinstance(instead, Respond)
    told = instead.status
    assert told == 402 if why.status == 402 else told >= 429, "what is said where nobody else has the model"


@pytest.mark.parametrize("why", NOT_OWN, ids=lambda f: f"{f.kind}-{f.status}")
def test_not_what_would_fail_there_too(why: Failure) -> None:
    play = Play(chat(), fallback=True)
    play.fails(0, why)
    assert fallen(play) is None and play.respond.status >= 400


def test_without_another_the_client_is_told() -> None:
    play = Play(chat())
    play.fails(0, FailureKind.CONNECT)
    assert play.respond.status == 502


def test_not_once_a_stream_has_begun() -> None:
    play = Play(chat(n=2, stream=True), fallback=True)
    play.says(0, delta("x"))
    play.fails(1, FailureKind.CONNECT)
    play.fails(0, FailureKind.CUT)
    assert fallen(play) is None and "error" in play.frames[-1]


def test_pings_say_nothing_that_another_upstream_could_not_go_on_from() -> None:
    play = Play(chat(stream=True), fallback=True)
    play.fires("headers")
    play.fires("ping")
    play.fails(0, FailureKind.CONNECT)
    assert fallen(play) == FailureKind.CONNECT and play.emitted == PING
    next_one = Play(chat(stream=True), begun=True)
    assert "headers" not in next_one.timers and not next_one.of(Begin)
    next_one.fires("ping")
    assert next_one.emitted == PING
    next_one.streams(0)
    assert next_one.finish == "ok" and not next_one.of(Begin) and next_one.emitted.startswith(PING + b"data: ")


def test_where_no_other_upstream_has_the_model_a_stream_of_pings_ends_in_an_event() -> None:
    for play in (Play(chat(stream=True), fallback=True), Play(chat(stream=True), fallback=True, begun=True)):
        if not play.begun:
            play.fires("headers")
        play.fails(0, status(503))
        (fallback,) = play.of(FallBack)
        event, end = fallback.instead
        assert isinstance(event, Emit) and end == Finish(FailureKind.STATUS, 503)
        assert event.data.startswith(b"data: ") and "error" in json.loads(event.data[6:])


@pytest.mark.parametrize("stream", [False, True])
def test_choices_are_lost_for_good_only_where_they_are_told_to_be(stream: bool) -> None:
    """Another upstream may bring those that this one lost."""
    play = Play(chat(n=2, stream=stream), fallback=True, partial=True)
    if stream:
        play.fires("headers")
    play.fails(0, FailureKind.CONNECT)
    play.fails(1, FailureKind.CONNECT)
    assert fallen(play) == FailureKind.CONNECT and not play.of(ChoiceFinished)


def test_failures_behind_pings_are_weighed_together() -> None:
    play = Play(chat(n=3, stream=True), fallback=True)
    play.fires("headers")
    play.fails(0, FailureKind.RESET)
    assert fallen(play) is None and "gather" in play.timers
    play.fires("gather")
    assert fallen(play) == FailureKind.RESET and not play.open


def test_what_comes_in_the_turn_of_a_failure_is_told_and_its_calls_run_to_their_end() -> None:
    play = Play(chat(n=2, stream=True), fallback=True)
    play.fires("headers")
    play.gets(LegFailed(0, failure(FailureKind.RESET)), LegChunk(1, delta("x")))
    play.streams(1)
    assert fallen(play) is None and "error" in play.frames[-1] and "x" in str(play.frames)


def test_one_failure_of_the_request_s_own_is_told() -> None:
    play = Play(chat(n=2), fallback=True)
    play.fails(0, FailureKind.CONNECT)
    play.fails(1, status(422))
    assert fallen(play) is None and play.respond.status == 422


def test_failures_of_one_moment_are_weighed_together_and_calls_end() -> None:
    play = Play(chat(n=3), fallback=True)
    play.fails(0, FailureKind.RESET)
    play.answers(1, answer("x"))
    assert fallen(play) is None and list(play.open) == [2]
    play.fires("gather")
    assert fallen(play) == FailureKind.RESET and not play.open


@pytest.mark.parametrize(("seconds", "waits"), [(1.0, True), (1.5, False)])
def test_a_wait_that_is_asked_for_is_kept_only_as_long_as_another_is_not_sooner(seconds: float, waits: bool) -> None:
    play = Play(chat(), fallback=True, retries=1)
    play.fails(0, status(429, retry_after=seconds))
    assert (fallen(play) is None) is waits and ("retry:0" in play.timers) is waits
    alone = Play(chat(), retries=1)
    alone.fails(0, status(429, retry_after=seconds))
    assert alone.timers["retry:0"] == seconds
    another_replica = Play(chat(), fallback=True, retries=1)
    another_replica.fails(0, replace(status(429, retry_after=seconds), another=True))
    assert "retry:0" in another_replica.timers


def test_what_the_client_has_read_of_stays_here_however_long_the_upstream_wishes() -> None:
    play = Play(chat(n=2, stream=True), fallback=True, retries=1)
    play.says(0, delta("x"))
    play.fails(1, status(429, retry_after=1.5))
    assert play.timers["retry:1"] == 1.5


def test_after_the_retries() -> None:
    play = Play(chat(), fallback=True, retries=1)
    play.fails(0, status(503))
    assert fallen(play) is None
    play.fires("retry:0")
    play.fails(0, FailureKind.TIMEOUT)
    assert fallen(play) == FailureKind.TIMEOUT
