"""R9: a server that ends a stream as soon as another call comes."""

from __future__ import annotations

from typing import Any

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.commands import Learn, Retried
from nproxy.choices.events import FailureKind
from nproxy.choices.lessons import OneAtATime
from tests.choices.conduct_player import Play, chat, completion, contents
from tests.choices.upstream_says import DONE, OK_STREAM, ROLE, answer, delta, text

ON_TRIAL = Capability(parallel=1, alone=True, alone_on_trial=True)


def lessons(play: Play) -> list[str]:
    return [command.lesson.verdict for command in play.of(Learn) if isinstance(command.lesson, OneAtATime)]


def ends_well(play: Play, leg: int, *events: bytes) -> None:
    play.says(leg, *(events or OK_STREAM))
    play.ends(leg, beside=True)


def interrupted(play: Play, leg: int, *events: bytes) -> None:
    play.says(leg, *(events or (ROLE,)), DONE)
    play.ends(leg, beside=True)


def test_R9_legs_that_said_nothing_are_called_again_one_at_a_time() -> None:
    play = Play(chat(n=4, stream=True, seed=5), retries=1)
    for leg in (0, 1, 2):
        interrupted(play, leg)
        assert len(play.opened) == 4, "not beside those that go on"
    ends_well(play, 3)
    assert lessons(play) == ["suspected"] * 3, "one that had others beside it shows nothing"
    for number in (0, 1, 2):
        again = play.opened[-1]
        assert list(play.open) == [number] and again.alone
        assert (again.leg.number, again.leg.seed, again.attempt) == (number, 5 + number, 1)
        play.streams(number)
    assert play.finish == "ok" and contents(play.frames) == dict.fromkeys(range(4), "ab")
    assert lessons(play)[3:] == ["confirmed"], "once"
    assert play.of(Retried) == [Retried(leg, FailureKind.INTERRUPTED) for leg in (0, 1, 2)]


def test_R9_a_relayed_role_is_not_said_twice() -> None:
    play = Play(chat(stream=True), retries=1)
    interrupted(play, 0)
    play.streams(0)
    roles = [frame for frame in play.frames[:-1] if "role" in frame["choices"][0]["delta"]]
    assert play.finish == "ok" and len(roles) == 1
    assert contents(play.frames) == {0: "ab"}


def test_R9_nor_where_the_second_answer_is_no_stream() -> None:
    play = Play(chat(stream=True), retries=1)
    interrupted(play, 0)
    play.answers(0, answer("x"))
    roles = [frame for frame in play.frames[:-1] if "role" in frame["choices"][0]["delta"]]
    assert play.finish == "ok" and len(roles) == 1
    assert contents(play.frames) == {0: "x"}


def test_R9_what_the_client_has_read_is_not_said_anew() -> None:
    play = Play(chat(n=2, stream=True), retries=1)
    interrupted(play, 0, ROLE, delta("a"))
    ends_well(play, 1)
    assert play.finish == FailureKind.INTERRUPTED
    assert "`parallel: 1`" in play.frames[-1]["error"]["message"]
    assert play.of(Retried) == [] and lessons(play) == ["suspected"], "the next request tries it"


def test_R9_a_whole_answer_that_is_folded_from_a_stream_begins_anew() -> None:
    play = Play(chat(n=2), Capability(native_width=1, json_usage=False), retries=1)
    interrupted(play, 0, ROLE, delta("lost"))
    ends_well(play, 1)
    play.streams(0)
    assert [choice["message"]["content"] for choice in play.reply["choices"]] == ["ab", "ab"]


@pytest.mark.parametrize("stream", [True, False])
def test_R9_only_a_stream_shows_that_it_helps(stream: bool) -> None:
    play = Play(chat(n=2, stream=stream), ON_TRIAL)
    for leg in (0, 1):
        assert play.opened[-1].alone and list(play.open) == [leg]
        if stream:
            play.streams(leg)
        else:
            play.answers(leg, answer("x"))
    assert lessons(play) == (["confirmed"] if stream else [])


def test_R9_a_stream_that_ends_so_by_itself_shows_that_it_does_not() -> None:
    play = Play(chat(n=2, stream=True), ON_TRIAL, retries=1)
    play.streams(0, ROLE, delta("a"), DONE)
    assert lessons(play) == ["refuted"]
    assert play.finish == FailureKind.CUT and "parallel" not in str(play.frames[-1])


def test_R9_a_second_time_nothing_is_to_blame_but_the_upstream() -> None:
    play = Play(chat(n=2, stream=True), retries=1)
    interrupted(play, 0)
    ends_well(play, 1)
    play.streams(0, ROLE, DONE)
    assert play.finish == FailureKind.CUT and lessons(play) == ["suspected", "refuted"]


@pytest.mark.parametrize(
    ("events", "beside"),
    [
        pytest.param((ROLE,), True, id="no [DONE]"),
        pytest.param((ROLE, DONE), False, id="nothing beside it"),
        pytest.param((), True, id="nothing at all"),
        pytest.param((DONE,), True, id="[DONE] only"),
    ],
)
def test_R9_a_cut_answer_teaches_nothing(events: Any, beside: bool) -> None:
    play = Play(chat(n=2, stream=True), retries=0)
    play.says(0, *events)
    play.ends(0, beside=beside)
    ends_well(play, 1)
    assert play.finish == FailureKind.CUT and lessons(play) == []


def test_R9_a_broken_connection_teaches_nothing() -> None:
    play = Play(chat(n=2, stream=True), retries=1)
    play.says(0, ROLE)
    play.fails(0, FailureKind.CUT)
    ends_well(play, 1)
    assert lessons(play) == [] and play.of(Retried) == [Retried(0, FailureKind.CUT)]


@pytest.mark.parametrize(("retries", "budget"), [(0, True), (1, False)])
def test_R9_K13_only_within_the_budget(retries: int, budget: bool) -> None:
    play = Play(chat(n=2, stream=True), retries=retries, budget=lambda: budget)
    interrupted(play, 0)
    ends_well(play, 1)
    assert play.finish == FailureKind.INTERRUPTED and len(play.opened) == 2


def test_R9_text_of_a_completion_has_been_read() -> None:
    play = Play(completion(n=2, stream=True), retries=1)
    interrupted(play, 0, text("a"))
    ends_well(play, 1, text("a", finish="stop"), DONE)
    assert play.finish == FailureKind.INTERRUPTED and lessons(play) == ["suspected"]


def test_R9_an_empty_text_has_not() -> None:
    play = Play(completion(n=2, stream=True), retries=1)
    interrupted(play, 0, text(""))
    ends_well(play, 1, text("a", finish="stop"), DONE)
    play.streams(0, text("a", finish="stop"), DONE)
    assert play.finish == "ok" and contents(play.frames) == {0: "a", 1: "a"}
