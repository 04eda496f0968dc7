"""N6: where prompts are cached, one leg computes the prompt before its siblings start."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.compose import asked_as_stream, compose
from nproxy.choices.events import FailureKind, Timer, TimerFired, TimerKind
from nproxy.choices.warming import WARM_SECONDS
from tests.choices.conduct_player import Play, chat, completion, contents
from tests.choices.upstream_says import DONE, answer, delta, status, text, usage, usage_chunk

CACHED = Capability(native_width=1, prefix_cache=True)


def called(play: Play) -> list[int]:
    return [opened.leg.number for opened in play.opened]


def test_N6_siblings_start_at_leg_0s_first_token() -> None:
    play = Play(chat(n=4, stream=True), CACHED)
    assert called(play) == [0] and play.timers["warm"] == WARM_SECONDS == 10
    play.says(0, delta("", role="assistant"))
    assert called(play) == [0], "a role says nothing of the prompt"
    play.says(0, delta("x"))
    assert called(play) == [0, 1, 2, 3]
    play.says(0, delta(finish="stop"))
    play.ends(0)
    for leg in (1, 2, 3):
        play.streams(leg)
    assert contents(play.frames) == {0: "x", 1: "ab", 2: "ab", 3: "ab"}


@pytest.mark.parametrize(
    "said", [delta(reasoning_content="hm"), delta(tool_calls=[{"index": 0, "id": "c"}]), delta("x", role="assistant")]
)
def test_N6_any_token_will_do(said: bytes) -> None:
    play = Play(chat(n=2, stream=True), CACHED)
    play.says(0, said)
    assert called(play) == [0, 1]


def test_N6_or_at_its_end() -> None:
    play = Play(chat(n=3), CACHED)
    assert called(play) == [0]
    play.answers(0, answer("x"))
    assert called(play) == [0, 1, 2]


def test_N6_or_at_its_failure() -> None:
    play = Play(chat(n=3), CACHED, retries=1)
    play.fails(0, status(503))
    assert called(play) == [0, 1, 2]
    play.fires("retry:0")
    assert called(play) == [0, 1, 2, 0]


def test_N6_a_failure_for_good_starts_nothing() -> None:
    play = Play(chat(n=3), CACHED)
    play.fails(0, status(500))
    assert play.over and called(play) == [0]


def test_N6_K3_where_a_part_will_do_the_others_are_tried() -> None:
    play = Play(chat(n=3), CACHED, partial=True)
    play.fails(0, FailureKind.TIMEOUT)
    assert called(play) == [0, 1, 2]


def test_N6_or_after_the_warm_limit() -> None:
    play = Play(chat(n=3, stream=True), CACHED)
    play.fires("warm")
    assert called(play) == [0, 1, 2]
    play.says(0, delta("x"))
    play.gets(TimerFired(Timer(TimerKind.WARM)))
    assert called(play) == [0, 1, 2]


def test_N6_parallel_holds_all_the_same() -> None:
    play = Play(chat(n=4, stream=True), Capability(native_width=1, prefix_cache=True, parallel=2))
    play.says(0, delta("x"))
    assert called(play) == [0, 1]


def test_N6_each_prompt_is_warmed_by_its_own_leg() -> None:
    capability = Capability(native_width=1, prefix_cache=True, prompt_lists=False)
    play = Play(completion(prompt=["p", "q"], n=2, stream=True), capability)
    assert [(opened.leg.prompt, opened.leg.offset) for opened in play.opened] == [(0, 0), (1, 0)]
    play.says(2, text("x"))
    assert [(opened.leg.prompt, opened.leg.offset) for opened in play.opened[2:]] == [(1, 1)]
    play.says(0, text("x"))
    assert len(play.opened) == 4


@pytest.mark.parametrize(
    ("request_", "capability"),
    [
        (chat(n=1), CACHED),
        (chat(n=4), Capability(native_width=None, prefix_cache=True)),
        (completion(prompt=["p", "q"]), Capability(native_width=1, prefix_cache=True, prompt_lists=False)),
        (chat(n=4), Capability(native_width=1)),
    ],
    ids=["one choice", "one call", "one leg per prompt", "no cache"],
)
def test_N6_nothing_waits_where_there_is_nothing_to_share(request_: Any, capability: Capability) -> None:
    play = Play(request_, capability)
    assert "warm" not in play.timers
    assert not any(asked_as_stream(request_, capability, opened.leg) for opened in play.opened)


def test_N6_legs_of_several_choices() -> None:
    play = Play(chat(n=10, stream=True), Capability(native_width=4, prefix_cache=True))
    assert called(play) == [0]
    play.says(0, delta("x", index=2))
    assert called(play) == [0, 1, 2]


def test_N6_the_first_leg_is_asked_for_as_a_stream_so_that_its_first_token_shows() -> None:
    play = Play(chat(n=2), CACHED)
    sent = json.loads(bytes(compose(play.request, CACHED, play.opened[0].leg)))
    assert sent["stream"] is True and sent["stream_options"] == {"include_usage": True}
    play.says(0, delta("x"))
    second = play.opened[1].leg
    assert not asked_as_stream(play.request, CACHED, second)
    play.says(0, delta(finish="stop"), usage_chunk(10, 1), DONE)
    play.ends(0)
    play.answers(1, answer("y", tokens=2))
    assert [choice["message"]["content"] for choice in play.reply["choices"]] == ["x", "y"]
    assert play.reply["usage"] == usage(10, 3)


def test_N6_but_not_at_the_cost_of_usage() -> None:
    capability = Capability(native_width=1, prefix_cache=True, stream_options=False)
    play = Play(chat(n=2), capability)
    assert not asked_as_stream(play.request, capability, play.opened[0].leg)
    play = Play(chat(n=2), CACHED)
    play.fails(0, status(400, b'{"error":{"message":"stream_options?","param":"stream_options"}}'))
    again = play.opened[1].leg
    assert again.number == 0 and not asked_as_stream(play.request, CACHED, again)
