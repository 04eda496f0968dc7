"""What streams teach of an upstream's way with usage."""

from __future__ import annotations

from typing import Any

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.commands import Learn
from nproxy.choices.compose import asked_as_stream
from nproxy.choices.events import FailureKind
from nproxy.choices.lessons import Lacks, Lesson
from tests.choices.conduct_player import EXACT, NATIVE, Play, chat
from tests.choices.upstream_says import DONE, answer, delta, usage, usage_chunk


def lessons(play: Play) -> list[Lesson]:
    return [command.lesson for command in play.of(Learn)]


def two(*tails: bytes, capability: Capability = NATIVE, **fields: Any) -> Play:
    play = Play(chat(n=2, **fields), capability)
    said = [chunk for index in (0, 1) for chunk in (delta("x", index=index), delta(index=index, finish="stop"))]
    play.streams(0, *said, *tails, DONE)
    assert play.finish == "ok"
    return play


@pytest.mark.parametrize("capability", [NATIVE, EXACT], ids=["native", "exact"])
def test_a_stream_without_the_usage_that_it_was_asked_for(capability: Capability) -> None:
    assert lessons(two(stream=True, capability=capability)) == [Lacks("stream_usage")]
    assert lessons(two(usage_chunk(3, 2), stream=True, capability=capability)) == []


def test_usage_that_rides_with_the_choices_is_usage() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.streams(0, delta("x", top={"usage": usage(3, 1)}), delta(finish="stop"), DONE)
    assert lessons(play) == []


def test_one_usage_chunk_for_one_choice_says_nothing_of_whole_answers() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.streams(0, delta("x"), delta(finish="stop"), usage_chunk(3, 1), DONE)
    assert lessons(play) == []


def test_usage_that_was_not_asked_for_is_not_missed() -> None:
    assert lessons(two(stream=True, capability=Capability(None, stream_options=False))) == []
    play = Play(chat(), NATIVE)
    play.answers(0, answer("x"))
    assert lessons(play) == []


def test_a_whole_answer_to_a_stream_teaches_nothing_of_streams() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.answers(0, answer("x"))
    assert lessons(play) == []


def test_a_stream_that_was_cut_behind_its_choices_teaches_nothing() -> None:
    play = Play(chat(stream=True), NATIVE)
    play.says(0, delta("x", finish="stop"))
    play.fails(0, FailureKind.CUT)
    assert play.finish == "ok" and lessons(play) == []


def test_R4_usage_for_each_choice_tells_of_whole_answers_that_count_one() -> None:
    assert lessons(two(usage_chunk(3, 1), usage_chunk(3, 1), stream=True)) == [Lacks("json_usage")]


def test_what_is_known_is_not_learned_again() -> None:
    known = Capability(None, stream_usage=False, json_usage=False)
    assert lessons(two(stream=True, capability=known)) == []
    assert lessons(two(usage_chunk(3, 1), usage_chunk(3, 1), capability=known)) == []


def test_N6_no_usage_in_streams_keeps_the_warming_leg_a_whole_answer() -> None:
    capability = Capability(native_width=1, prefix_cache=True, stream_usage=False)
    play = Play(chat(n=2), capability)
    assert not asked_as_stream(play.request, capability, play.opened[0].leg)
