"""Replay of legs of several choices, and the answer around the text: names, usage, what is told once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.commands import Retried, Spent
from nproxy.choices.compose import compose
from nproxy.choices.events import FailureKind, LegBody
from tests.choices.conduct_player import EXACT, NATIVE, chat, choices_in, completion, contents, finishes, replayed
from tests.choices.upstream_says import DONE, ROLE, STOP, answer, chunk, delta, framed, text, usage, usage_chunk


@pytest.mark.parametrize("capability", [NATIVE, EXACT], ids=["native", "exact"])
def test_choices_of_a_leg_that_were_finished_stay_so(capability: Capability) -> None:
    play = replayed(chat(n=3, stream=True, stream_options={"include_usage": True}), capability)
    play.breaks_off(0, delta("a", index=0), delta("b", index=1), delta(index=0, finish="stop"))
    play.fires("retry:0")
    play.says(0, delta("OTHER", index=0), delta(index=0, finish="length"), delta("bc", index=1))
    play.streams(
        0, delta("d", index=2), delta(index=1, finish="stop"), delta(index=2, finish="stop"), usage_chunk(3, 6)
    )
    assert contents(play.frames) == {0: "a", 1: "bc", 2: "d"} and sorted(finishes(play.frames)) == [0, 1, 2]
    reasons = [choice["finish_reason"] for choice in choices_in(play.frames) if choice["index"] == 0]
    assert [reason for reason in reasons if reason] == ["stop"]
    assert play.frames[-2]["usage"]["total_tokens"] == 9
    roles = [choice["index"] for choice in choices_in(play.frames) if choice["delta"].get("role")]
    assert sorted(roles) == [0, 1, 2]


def test_several_prompts_of_one_call() -> None:
    play = replayed(completion(prompt=["p", "q"], n=1, stream=True))
    play.breaks_off(0, text("a", index=0), text("b", index=1))
    play.fires("retry:0")
    ends = [text("", index=index, finish="stop") for index in (0, 1)]
    play.streams(0, text("ab", index=0), text("bc", index=1), *ends)
    assert contents(play.frames) == {0: "ab", 1: "bc"}


def test_equal_choices_that_are_computed_once() -> None:
    play = replayed(chat(n=3, stream=True, temperature=0), greedy="dedupe")
    play.breaks_off(0, ROLE, delta("a"))
    play.fires("retry:0")
    play.streams(0, delta("ab"), STOP)
    assert contents(play.frames) == dict.fromkeys(range(3), "ab")


def test_a_relayed_stream_keeps_its_names() -> None:
    play = replayed(chat(stream=True, stream_options={"include_usage": True}))
    play.breaks_off(0, *(event.replace(b"up-1", b"up-first") for event in (ROLE, *(delta(c) for c in "abcdef"))))
    play.fires("retry:0")
    play.streams(0, ROLE, *(delta(c) for c in "abcdefghijkl"), STOP, usage_chunk(3, 12), DONE)
    assert {frame["id"] for frame in play.frames[:-1]} == {"up-first"}
    assert contents(play.frames) == {0: "abcdefghijkl"} and play.frames[-2]["usage"]["completion_tokens"] == 12


def test_a_whole_answer_to_the_second_call() -> None:
    play = replayed(chat(n=2, stream=True))
    play.breaks_off(0, ROLE, delta("Hel"))
    play.fires("retry:0")
    play.answers(0, answer("Hello"))
    play.streams(1)
    assert contents(play.frames) == {0: "Hello", 1: "ab"}


def test_events_in_a_body_that_end_in_an_error_are_not_lost() -> None:
    """Their content-type is wrong, so they come as one body."""
    play = replayed(chat(n=2, stream=True))
    play.streams(1)
    play.gets(LegBody(0, framed(ROLE, delta("Once upon "), b'{"error":{"message":"it died","code":500}}')))
    play.fires("retry:0")
    play.streams(0, ROLE, delta("Once upon "), delta("a time."), STOP, DONE)
    assert contents(play.frames) == {0: "Once upon a time.", 1: "ab"} and play.finish == "ok"


@pytest.mark.parametrize("as_body", [False, True], ids=["a chunk", "a whole answer"])
def test_a_choice_that_ends_beside_one_that_differs_is_not_lost(as_body: bool) -> None:
    play = replayed(chat(n=2, stream=True), NATIVE, partial=True)
    play.breaks_off(0, delta("Hello", index=0), delta("Bye", index=1))
    play.fires("retry:0")
    if as_body:
        play.gets(LegBody(0, answer("Hello world", "Bah")))
    else:
        ends = {"index": 0, "delta": {"content": "Hello world"}, "finish_reason": "stop"}
        play.says(0, chunk([ends, {"index": 1, "delta": {"content": "Bah"}, "finish_reason": None}]))
    assert contents(play.frames) == {0: "Hello world", 1: "Bye"}
    reasons = {choice["index"]: choice["finish_reason"] for choice in choices_in(play.frames)}
    assert reasons == {0: "stop", 1: "error"} and play.finish == "partial"


def test_what_is_told_once_beside_choices_is_not_told_again() -> None:
    beside = chunk([], prompt_filter_results=[1])
    play = replayed(chat(n=2, stream=True))
    play.breaks_off(0, beside, ROLE, delta("a"))
    play.fires("retry:0")
    play.streams(0, beside, delta("ab"), STOP)
    play.streams(1)
    assert sum("prompt_filter_results" in frame for frame in play.frames[:-1]) == 1


def test_usage_is_the_completing_call_s_and_what_was_spent_is_in_the_metrics() -> None:
    play = replayed(chat(n=2, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}))
    play.says(1, delta("x", top={"usage": {"prompt_tokens": 3, "completion_tokens": 1}}))
    play.says(
        0, *(delta(c, top={"usage": {"prompt_tokens": 3, "completion_tokens": 1 + at}}) for at, c in enumerate("ab"))
    )
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.says(1, delta("y", top={"usage": {"prompt_tokens": 3, "completion_tokens": 2}}), STOP)
    play.streams(1, usage_chunk(3, 2))
    again = [delta(c, top={"usage": {"prompt_tokens": 3, "completion_tokens": 1 + at}}) for at, c in enumerate("abc")]
    play.streams(0, *again, STOP, usage_chunk(3, 3))
    totals = [frame["usage"]["completion_tokens"] for frame in play.frames[:-1] if frame.get("usage")]
    assert totals == [1, 2, 3, 3, 5, 5], "it never falls"
    (spent,) = play.of(Spent)
    assert (spent.client_prompt, spent.client_completion) == (3, 5)
    assert (spent.upstream_prompt, spent.upstream_completion) == (9, 7)


def test_tokens_of_a_choice_that_was_finished_count_though_its_repetition_is_cut() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    play = replayed(chat(n=2, stream=True, stream_options=options), NATIVE)
    done = delta("abc", index=0, finish="stop", top={"usage": usage(3, 3)})
    play.breaks_off(0, done, delta("d", index=1, top={"usage": usage(3, 1)}))
    play.fires("retry:0")
    play.says(0, delta("a", index=0, top={"usage": usage(3, 1)}))
    play.breaks_off(0, delta("de", index=1, finish="stop", top={"usage": usage(3, 2)}))
    assert [frame["usage"]["completion_tokens"] for frame in play.frames[:-1] if frame["usage"]] == [3, 4, 5, 5]
    (spent,) = play.of(Spent)
    assert (spent.client_completion, spent.upstream_completion) == (5, 7)


def test_running_usage_of_an_exact_wire_stays_that_of_all_its_choices() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    play = replayed(chat(n=2, stream=True, stream_options=options), EXACT)
    first = [delta("a", index=at, role="assistant", top={"usage": usage(3, at + 1)}) for at in (0, 1)]
    play.breaks_off(0, *first)
    play.fires("retry:0")
    finish = [delta(index=at, finish="stop", top={"usage": usage(3, 4)}) for at in (0, 1)]
    more = [delta("b", index=at, top={"usage": usage(3, 3 + at)}) for at in (0, 1)]
    play.streams(0, *first, *more, *finish, usage_chunk(3, 4))
    assert [frame["usage"] for frame in play.frames[:-1] if frame["usage"]] == [
        usage(3, completion) for completion in (1, 2, 3, 4, 4, 4, 4)
    ]


def test_running_usage_of_an_exact_wire_does_not_fall_while_it_comes_again() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    play = replayed(chat(n=2, stream=True, stream_options=options), EXACT)
    first = [delta("a", index=0, role="assistant", top={"usage": usage(3, 1)})]
    first += [delta("abcd"[at], index=1, top={"usage": usage(3, 2 + at)}) for at in range(4)]
    play.breaks_off(0, *first)
    play.fires("retry:0")
    again = [delta("abcd", index=1, role="assistant", top={"usage": usage(3, 1)})]
    again += [delta("efg"[at], index=1, top={"usage": usage(3, 2 + at)}) for at in range(3)]
    again += [delta("a", index=0, role="assistant", top={"usage": usage(3, 5)})]
    again += [delta(index=at, finish="stop", top={"usage": usage(3, 6)}) for at in (0, 1)]
    play.streams(0, *again, usage_chunk(3, 6))
    told = [frame["usage"]["completion_tokens"] for frame in play.frames[:-1] if frame["usage"]]
    assert told == sorted(told) and told[-1] == 6


def test_a_stream_that_is_folded_is_not_recorded_and_begins_anew() -> None:
    play = replayed(chat(n=2), Capability(native_width=2, json_usage=False))
    play.breaks_off(0, delta("lost"))
    play.fires("retry:0")
    play.streams(0, delta("new"), delta("too", index=1), STOP, delta(index=1, finish="stop"), usage_chunk(3, 4))
    assert [choice["message"]["content"] for choice in play.reply["choices"]] == ["new", "too"]
    assert play.resumed == [] and play.of(Retried) == [Retried(0, FailureKind.CUT)]


def test_the_body_is_the_same() -> None:
    play = replayed()
    bodies: list[bytes] = []
    sent: Callable[[], bytes] = lambda: bytes(compose(play.request, play.capability, play.opened[-1].leg))  # noqa: E731
    bodies.append(sent())
    play.breaks_off(0, ROLE, delta("a"))
    play.fires("retry:0")
    assert sent() == bodies[0]


def test_choices_that_take_turns_are_kept_apart_without_being_parsed() -> None:
    play = replayed(chat(n=2, stream=True), NATIVE)
    play.breaks_off(0, *(delta(f"{index}{place}", index=index) for place in range(40) for index in (0, 1)))
    play.fires("retry:0")
    again = [delta(f"{index}{place}", index=index) for index in (1, 0) for place in range(50)]
    play.streams(0, *again, STOP, delta(index=1, finish="stop"))
    assert contents(play.frames) == {index: "".join(f"{index}{place}" for place in range(50)) for index in (0, 1)}


def test_a_relay_tells_what_stands_beside_choices_once_too() -> None:
    beside = chunk([], prompt_filter_results=[1])
    play = replayed()
    play.breaks_off(0, beside, ROLE, delta("a"))
    play.fires("retry:0")
    play.streams(0, beside, delta("ab"), STOP)
    assert sum("prompt_filter_results" in frame for frame in play.frames[:-1]) == 1
