"""Where the upstream is at fault and the client has nothing yet, the request may go to another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nproxy.choices.commands import Begin, FallBack, Finish, Respond
from nproxy.choices.events import Failure, FailureKind
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
    assert len(commands) == 1 and not play.of(Respond) and not play.of(Begin)
    assert play.everything[-1] == Finish("fallback")
    return commands[0].kind


@pytest.mark.parametrize("why", OWN, ids=lambda f: f"{f.kind}-{f.status}")
@pytest.mark.parametrize("stream", [False, True])
def test_another_upstream_may_do_what_this_one_did_not(why: Failure, stream: bool) -> None:
    play = Play(chat(stream=stream), fallback=True)
    play.fails(0, why)
    if why.kind is FailureKind.STALE:  # its second attempt is free
        play.fails(0, why)
    assert fallen(play) == why.kind
    told = play.of(FallBack)[0].instead.status
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


def test_nor_once_a_ping_has() -> None:
    play = Play(chat(stream=True), fallback=True)
    play.fires("headers")
    play.fails(0, FailureKind.CONNECT)
    assert fallen(play) is None and "error" in play.frames[-1]


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


def test_after_the_retries() -> None:
    play = Play(chat(), fallback=True, retries=1)
    play.fails(0, status(503))
    assert fallen(play) is None
    play.fires("retry:0")
    play.fails(0, FailureKind.TIMEOUT)
    assert fallen(play) == FailureKind.TIMEOUT
