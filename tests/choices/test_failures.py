"""K: what a client is told when legs fail."""

from __future__ import annotations

import json

import pytest

from nproxy.choices.commands import Begin, CancelLeg, Emit, Finish, Respond
from nproxy.choices.events import Failure, FailureKind, LegFailed, Stopped
from nproxy.choices.plan import Way
from nproxy.openai.errors import not_ready
from tests.choices.conduct_player import NATIVE, Play, chat, contents
from tests.choices.upstream_says import DONE, answer, delta, failure, status

BOTH = pytest.mark.parametrize("stream", [False, True])


@BOTH
def test_K1_all_legs_400_alike(stream: bool) -> None:
    why = status(400, b'{"error":{"message":"bad top_k","type":"BadRequestError","param":"top_k","code":400}}')
    play = Play(chat(n=3, stream=stream))
    play.gets(*(LegFailed(leg, why) for leg in range(3)))
    assert play.respond.status == 400
    assert play.reply["error"] == {"message": "bad top_k", "type": "BadRequestError", "param": "top_k", "code": None}


def test_K1_a_validation_error_does_not_wait_for_anything() -> None:
    play = Play(chat(n=3))
    play.fails(1, status(422))
    assert play.over and play.respond.status == 422
    assert [command.leg for command in play.of(CancelLeg)] == [0, 2]


@BOTH
def test_K2_429_with_the_longest_wait_known(stream: bool) -> None:
    play = Play(chat(n=4, stream=stream))
    play.fails(2, status(429, retry_after=1.2))
    assert not play.over and play.timers["gather"] == 0.05
    play.fails(0, status(429, retry_after=7))
    play.fires("gather")
    assert play.respond.status == 429
    assert play.headers["retry-after"] == "7"
    assert sorted(command.leg for command in play.of(CancelLeg)) == [1, 3]


@pytest.mark.parametrize(("code", "wait"), [(503, "7"), (500, "7"), (400, None), (404, None)])
def test_K2_when_to_come_back_is_told_where_that_may_help(code: int, wait: str | None) -> None:
    play = Play(chat())
    play.fails(0, status(code, retry_after=6.5))
    assert play.respond.status == code and play.headers.get("retry-after") == wait


@pytest.mark.parametrize(("code", "told"), [(503, "false"), (429, None)])
def test_K13_after_attempts_of_our_own_only_a_limit_is_for_the_client_to_try_again(code: int, told: str | None) -> None:
    play = Play(chat(), retries=1, budget=lambda: False)
    play.fails(0, status(code))
    assert play.respond.status == code and play.headers.get("x-should-retry") == told


@pytest.mark.parametrize("other", [status(408), status(504), status(401, own_key=True), status(403, own_key=True)])
def test_K4_neither_lateness_nor_a_key_of_our_own_is_the_clients_to_mend(other: Failure) -> None:
    play = Play(chat(n=2))
    play.fails(0, other)
    assert not play.over, "the other failure may be more telling"
    play.fails(1, status(429))
    assert play.respond.status == 429


def test_what_a_sibling_says_while_failures_are_gathered_begins_no_stream() -> None:
    play = Play(chat(n=2, stream=True))
    play.fails(0, status(503))
    play.says(1, delta("x"))
    play.fires("gather")
    assert play.of(Begin) == [] and play.of(Emit) == []
    assert play.respond.status == 503


ORDER = [
    status(404),
    status(403),
    status(429),
    status(500),
    failure(FailureKind.TIMEOUT),
    failure(FailureKind.CONNECT_TIMEOUT),
]


@pytest.mark.parametrize("high", range(len(ORDER)))
@pytest.mark.parametrize("low", range(len(ORDER)))
def test_K4_the_most_telling_failure(low: int, high: int) -> None:
    if high > low:
        low, high = high, low
    play = Play(chat(n=3))
    play.fails(0, ORDER[low])
    if not play.over:
        play.fails(1, ORDER[high])
    if not play.over:
        play.fires("gather")
    assert play.respond.status == (ORDER[high].status or 504)


@pytest.mark.parametrize(
    ("kind", "code", "word"),
    [
        (FailureKind.CONNECT, 502, "upstream_unavailable"),
        (FailureKind.RESET, 502, "upstream_unavailable"),
        (FailureKind.TIMEOUT, 504, "upstream_timeout"),
        (FailureKind.CONNECT_TIMEOUT, 504, "upstream_timeout"),
        (FailureKind.CUT, 502, "upstream_error"),
        (FailureKind.MALFORMED, 502, "upstream_error"),
        (FailureKind.OVERSIZE, 502, "upstream_error"),
    ],
    ids=str,
)
@BOTH
def test_K11_N2_failures_without_an_answer(kind: FailureKind, code: int, word: str, stream: bool) -> None:
    play = Play(chat(stream=stream))
    play.fails(0, kind)
    assert (play.respond.status, play.reply["error"]["code"]) == (code, word)
    assert play.finish == kind


def test_K6_a_stream_is_cut_after_it_began() -> None:
    play = Play(chat(n=3, stream=True))
    play.says(0, delta("x"))
    play.says(1, delta("y"))
    play.fails(0, FailureKind.CUT)
    assert not play.over and play.of(CancelLeg) == []
    play.streams(1)
    play.streams(2)
    assert contents(play.frames) == {0: "x", 1: "yab", 2: "ab"}
    assert play.frames[-1]["error"]["code"] == "upstream_error"
    assert "[DONE]" not in play.frames
    assert play.of(Finish) == [Finish(FailureKind.CUT, 502)], "the log is told what the 200 became"


def test_K6_not_streaming_siblings_are_cancelled() -> None:
    play = Play(chat(n=3))
    play.answers(1, answer("x"))
    play.fails(0, FailureKind.CUT)
    play.fires("gather")
    assert [command.leg for command in play.of(CancelLeg)] == [2]
    assert play.respond.status == 502


@BOTH
@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ('"boom"', 502),
        ('{"message":"boom","type":"t","code":400}', 400),
        ('{"message":"boom","code":402}', 402),
        ('{"message":"boom","code":"429"}', 429),
        ('{"message":"boom","code":401}', 502),  # whose key it was is not known
        ('{"message":"boom","code":500}', 502),
        ('{"message":"boom","code":503}', 502),
        ('{"message":"boom","http_status_code":422}', 422),
        ('"boom","error_type":"validation"', 400),
        ('"boom","error_type":"overloaded"', 502),
        ('"boom","error_type":"generation"', 502),
    ],
)
def test_K8_200_with_an_error(stream: bool, error: str, shown: int) -> None:
    body = f'{{"error":{error}}}'.encode()
    play = Play(chat(stream=stream))
    if stream:
        play.says(0, body)
    else:
        play.answers(0, body)
    if not play.over:
        play.fires("gather")
    assert play.respond.status == shown
    assert play.reply["error"]["message"] == "boom"
    assert [command.leg for command in play.of(CancelLeg)] == [0]


def test_K8_every_choice_of_a_200_is_an_error() -> None:
    """OpenRouter, where the provider that was to answer has failed."""
    lost = {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "error"}
    why = {"code": 400, "message": "boom", "metadata": {"provider": "p"}}
    play = Play(chat(), retries=0)
    play.answers(0, json.dumps({"id": "x", "choices": [{**lost, "error": why}]}).encode())
    assert play.respond.status == 400
    assert play.reply["error"] == {"type": "invalid_request_error", "param": None, **why, "code": None}


def test_K3_if_only_the_first_of_a_200_is_lost_the_others_are_the_answer() -> None:
    lost = {"index": 0, "message": {"content": None}, "finish_reason": "error", "error": {"message": "boom"}}
    said = {"index": 1, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    play = Play(chat(n=2), NATIVE)
    play.answers(0, json.dumps({"id": "x", "choices": [lost, said]}).encode())
    assert play.finish == "ok"
    assert [choice.get("error") for choice in play.reply["choices"]] == [{"message": "boom"}, None]


def test_choices_that_are_lost_beside_others_are_part_of_the_answer() -> None:
    """As nproxy itself tells them, where a part will do."""
    said = {"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    choices = [{"index": index, **said} for index in range(2)]
    choices[1] |= {"finish_reason": "error", "error": {"message": "boom"}}
    play = Play(chat(n=2), NATIVE)
    play.answers(0, json.dumps({"id": "x", "choices": choices}).encode())
    assert play.respond.status == 200


def test_K8_in_mid_stream() -> None:
    play = Play(chat(n=2, stream=True))
    play.says(0, delta("x"), b'{"error":{"message":"boom"}}')
    play.streams(1)
    assert play.frames[-1]["error"]["message"] == "boom"
    assert play.finish == "in_band"


def test_P13_an_event_named_error() -> None:
    play = Play(chat(n=2, stream=True))
    play.says(0, delta("x"))
    play.says(0, b'{"message":"boom"}', name="error")
    play.streams(1)
    assert play.frames[-1]["error"]["message"] == "boom"
    play = Play(chat(n=1, stream=True))
    play.says(0, b"out of memory", name="error")
    assert play.reply["error"]["message"] == "out of memory"


def test_P8_other_event_names_do_not_matter() -> None:
    play = Play(chat(n=1, stream=True))
    play.says(0, delta("x", role="assistant"), name="message")
    assert contents(play.frames) == {0: "x"}


def test_K9_no_html_is_passed_on() -> None:
    page = b"<html><body>nginx</body></html>"
    why = Failure(FailureKind.STATUS, "It answered 502.", status=502, content_type="text/html", body=page)
    play = Play(chat(n=2))
    play.fails(0, why)
    play.fires("gather")
    assert b"<" not in play.respond.body and play.respond.status == 502


def test_K12_a_malformed_event_siblings_live() -> None:
    play = Play(chat(n=2, stream=True))
    play.streams(1)
    play.says(0, delta("x"), b'{"choices":[')
    assert [command.leg for command in play.of(CancelLeg)] == [0]
    assert contents(play.frames) == {0: "x", 1: "ab"}
    assert play.finish == "malformed"


@pytest.mark.parametrize("code", [401, 403])
def test_K15_whose_key_it_was(code: int) -> None:
    play = Play(chat())
    play.fails(0, status(code, own_key=True))
    assert (play.respond.status, play.reply["error"]["code"]) == (502, "upstream_auth")
    play = Play(chat())
    play.fails(0, status(code))
    assert play.respond.status == code


def test_a_redirect_is_a_broken_upstream() -> None:
    play = Play(chat())
    play.fails(0, status(307))
    assert play.respond.status == 502


def test_a_cut_after_the_last_finish_is_no_failure() -> None:
    play = Play(chat(n=2, stream=True))
    play.streams(0)
    play.says(1, delta("x", finish="stop"))
    play.fails(1, FailureKind.CUT)
    assert play.finish == "ok"
    assert [a.kind for a in play.anomalies] == ["cut_after_finish"]


def test_a_cut_of_a_wide_leg_in_which_a_choice_never_began() -> None:
    play = Play(chat(n=2, stream=True), NATIVE)
    play.says(0, delta("x", finish="stop"))
    play.fails(0, FailureKind.CUT)
    assert play.finish == "cut"


@BOTH
def test_error_answers_say_how_they_came_about(stream: bool) -> None:
    play = Play(chat(n=2, stream=stream))
    play.fails(0, status(400))
    assert play.way == Way("fanout", 2)


def test_a_pause_that_is_over_calls_no_leg_that_nobody_waits_for_any_more() -> None:
    play = Play(chat(n=3, stream=True), retries=1)
    play.says(1, delta("x"))
    play.fails(0, status(503))
    play.fails(1, FailureKind.CUT)
    assert not play.over and play.fires("retry:0") == []
    play.streams(2)
    assert play.finish == FailureKind.CUT and len(play.opened) == 3


def test_nothing_is_heard_after_the_end() -> None:
    play = Play(chat(n=2))
    play.fails(0, status(400))
    assert play.gets(LegFailed(1, status(500))) == []
    assert play.answers(1, answer("x")) == []
    assert len(play.of(Respond)) == 1


def test_events_of_unknown_and_ended_legs_are_ignored() -> None:
    play = Play(chat(n=2, stream=True))
    play.streams(0)
    before = len(play.everything)
    play.says(0, delta("late"))
    play.says(9, delta("who"))
    play.ends(9)
    play.fails(0, FailureKind.CUT)
    assert len(play.everything) == before


def test_empty_answers_are_failures() -> None:
    for events in ((), (DONE,)):
        play = Play(chat(stream=True))
        play.says(0, *events)
        play.ends(0)
        assert json.loads(play.respond.body)["error"]["code"] == "upstream_error"
        assert play.finish == "cut"


@pytest.mark.parametrize("begun", [False, True])
def test_a_request_that_is_stopped_ends_with_that_error_whatever_comes_with_it(begun: bool) -> None:
    play = Play(chat(n=2, stream=True))
    if begun:
        play.says(0, delta("x"))
    play.gets(Stopped(not_ready("It shuts down.")), LegFailed(0, failure(FailureKind.CUT)))
    assert play.finish == "ended" and [command.leg for command in play.of(CancelLeg)] == [0, 1]
    error = play.frames[-1]["error"] if begun else play.reply["error"]
    assert error["message"] == "It shuts down."


def test_a_request_is_stopped_while_its_legs_wait_and_opens_none() -> None:
    play = Play(chat(n=2), retries=1)
    play.gets(*(LegFailed(leg, status(503)) for leg in range(2)))
    opened = len(play.opened)
    play.gets(Stopped(not_ready("It shuts down.")))
    assert play.over and play.respond.status == 503 and len(play.opened) == opened
