"""K10, P14: when the head goes out, and signs of life. N7: legs that wait for their turn."""

from __future__ import annotations

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.commands import Begin, Emit
from nproxy.choices.events import FailureKind
from nproxy.choices.plan import Way
from nproxy.openai.wire import PING
from tests.choices.conduct_player import EXACT, NATIVE, Play, chat, contents
from tests.choices.upstream_says import DONE, answer, delta, status


def test_K10_the_head_goes_out_with_the_first_event_of_any_leg() -> None:
    play = Play(chat(n=3, stream=True))
    play.says(1, delta("", role="assistant"))
    assert play.way == Way("fanout", 3)
    assert isinstance(play.everything[-1], Emit)


def test_K10_done_alone_is_no_event() -> None:
    play = Play(chat(n=2, stream=True))
    play.says(0, DONE)
    assert play.of(Begin) == []


def test_K10_or_after_headers_after_seconds_with_pings() -> None:
    play = Play(chat(n=2, stream=True))
    assert play.timers["headers"] == 30.0
    play.fires("headers")
    assert play.emitted == PING
    play.fails(0, status(400))
    play.streams(1)
    assert play.frames[-1]["error"]["message"] == "says 400"


def test_K10_before_that_a_failure_has_its_real_status() -> None:
    play = Play(chat(n=2, stream=True))
    play.fails(0, status(404))
    assert play.respond.status == 404


def test_K10_the_timer_comes_too_late() -> None:
    play = Play(chat(n=2, stream=True))
    play.says(0, delta("x"))
    before = play.emitted
    play.fires("headers")
    assert play.emitted == before
    play = Play(chat(n=2, stream=True))
    play.fails(0, status(503))
    play.fires("headers")
    assert play.of(Begin) == []


def test_a_whole_answer_needs_no_timers() -> None:
    assert Play(chat(n=2)).timers == {}


def test_P14_no_silence_longer_than_ping_seconds() -> None:
    play = Play(chat(n=2, stream=True))
    assert "ping" not in play.timers
    play.says(0, delta("x"))
    assert play.timers["ping"] == 7.5
    before = play.emitted
    play.fires("ping")
    assert play.emitted == before  # something was written in this half
    play.fires("ping")
    assert play.emitted == before + PING
    play.fires("ping")
    assert play.emitted == before + PING
    play.fires("ping")
    assert play.emitted == before + PING * 2
    assert play.timers["ping"] == 7.5, "each look as soon as the one before"


def test_P14_what_the_client_is_not_shown_is_silence_too() -> None:
    play = Play(chat(n=2, stream=True))
    play.says(0, delta("x"))
    play.fires("ping")
    before = play.emitted
    play.says(1, delta("", role="assistant"))  # the prelude has said it
    play.fires("ping")
    assert play.emitted == before + PING


def test_P14_waiting_for_a_retry_is_silence_too() -> None:
    play = Play(chat(n=1, stream=True), retries=1)
    play.fires("headers")
    play.fails(0, FailureKind.RESET)
    play.fires("ping")
    play.fires("ping")
    assert play.emitted == PING * 2


@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_N7_never_more_calls_than_allowed(parallel: int) -> None:
    play = Play(chat(n=8), Capability(parallel=parallel))  # the play checks the bound after every step
    for number in range(8):
        assert [opened.leg.number for opened in play.opened] == list(range(min(8, number + parallel)))
        play.answers(number, answer(f"c{number}"))
    assert [choice["message"]["content"] for choice in play.reply["choices"]] == [f"c{i}" for i in range(8)]


def test_N7_in_a_stream_the_prelude_names_all() -> None:
    play = Play(chat(n=3, stream=True), Capability(parallel=1))
    for leg in range(3):
        play.streams(leg)
    assert [frame["choices"][0]["index"] for frame in play.frames[:3]] == [0, 1, 2]
    assert contents(play.frames) == dict.fromkeys(range(3), "ab")


def test_N7_a_leg_that_pauses_gives_its_place_and_takes_its_turn() -> None:
    play = Play(chat(n=3), Capability(parallel=1), retries=1)
    play.fails(0, status(503))
    assert [opened.leg.number for opened in play.opened] == [0, 1]
    play.fires("retry:0")
    assert len(play.opened) == 2
    play.answers(1, answer("x"))
    assert [opened.leg.number for opened in play.opened] == [0, 1, 0]


def test_N7_legs_that_wait_are_not_opened_after_a_failure() -> None:
    play = Play(chat(n=4, stream=True), Capability(parallel=2))
    play.says(0, delta("x"))
    play.fails(0, FailureKind.CUT)
    play.streams(1)
    assert play.finish == "cut" and len(play.opened) == 2


def test_N7_top_ups_wait_too() -> None:
    play = Play(chat(n=4), Capability(native_width=None, parallel=1))
    play.answers(0, answer("x"))
    for leg in (1, 2, 3):
        play.answers(leg, answer("y"))
    assert play.finish == "ok"


@pytest.mark.parametrize(
    ("n", "capability", "mode"),
    [(1, NATIVE, "relay"), (2, NATIVE, "native"), (2, EXACT, "relay"), (2, Capability(), "fanout")],
)
def test_the_head_names_the_mode(n: int, capability: Capability, mode: str) -> None:
    play = Play(chat(n=n, stream=True), capability)
    play.says(0, delta("x"))
    assert play.way.mode == mode
