"""Replay: a leg that was cut is called again with its seed, and the client reads on where it was."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.commands import Anomaly, Resumed, Retried, Spent
from nproxy.choices.compose import compose
from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.plan import Request
from nproxy.choices.replay import Transcript
from nproxy.choices.retry import resumable, retryable
from tests.choices.tutil import (
    DONE,
    EXACT,
    FANOUT,
    NATIVE,
    Play,
    answer,
    chat,
    choices_in,
    chunk,
    completion,
    contents,
    delta,
    failure,
    finishes,
    status,
    text,
    usage_chunk,
)

ROLE = delta("", role="assistant")
STOP = delta(finish="stop")


def stage(request: Request | None = None, capability: Capability = FANOUT, **more: Any) -> Play:
    return Play(request or chat(stream=True, seed=5), capability, **{"retries": 1, "resume": "replay", **more})


def outcomes(play: Play) -> list[str]:
    return [f"{resumed.how} {resumed.outcome}" for resumed in play.of(Resumed)]


def said(play: Play, key: str, index: int = 0) -> str:
    """The client's text of one channel of one choice."""
    texts = (choice["delta"].get(key) for choice in choices_in(play.frames) if choice["index"] == index)
    return "".join(text or "" for text in texts)


# ---- which failures


def in_band(error: Any) -> Failure:
    body = error if isinstance(error, bytes) else json.dumps({"error": error}).encode()
    return Failure(FailureKind.IN_BAND, "It says no.", body=body)


RESUMED = [
    *map(failure, (FailureKind.CUT, FailureKind.RESET, FailureKind.TIMEOUT, FailureKind.MALFORMED)),
    in_band({"message": "died", "code": 500}),
    in_band({"message": "died", "code": "503"}),
    in_band({"message": "died", "type": "server_error"}),
    in_band({"message": "died"}),
    in_band({"message": "died", "code": 1302, "type": "overloaded"}),
    in_band({"message": "died", "code": "\u00b2\u00b2\u00b2"}),
    in_band({"message": "died", "code": "9" * 5000}),
    in_band("died"),
    in_band(b"died"),
    in_band(b'["died"]'),
    in_band(b'{"object": "error", "message": "died", "code": 500}'),
]
NOT_RESUMED = [
    failure(FailureKind.OVERSIZE),
    failure(FailureKind.DIFFERS),
    failure(FailureKind.SHORT),
    status(503),
    in_band({"message": "no", "code": 400}),
    in_band({"message": "no", "code": "429"}),
    in_band({"message": "no", "code": 1302, "type": "invalid_request_error"}),
    in_band({"message": "no", "type": "invalid_request_error"}),
    in_band({"message": "no", "type": "BadRequestError"}),
    in_band({"message": "no", "code": "context_length_exceeded"}),
    in_band({"message": "no", "code": "content_filter"}),
]


@pytest.mark.parametrize("why", RESUMED, ids=lambda f: f"{f.kind}-{f.body.decode()[:60]}")
def test_the_upstream_s_faults_are_made_good(why: Failure) -> None:
    assert resumable(why) and retryable(why) is (why.kind is not FailureKind.TIMEOUT)
    play = stage()
    play.says(0, ROLE, delta("Hel"))
    play.fails(0, why)
    assert not play.over and play.timers["retry:0"] == 0.125, "full jitter, as before a first event"
    play.fires("retry:0")
    play.streams(0, ROLE, delta("Hello"), STOP, DONE)
    assert contents(play.frames) == {0: "Hello"} and finishes(play.frames) == [0]
    assert outcomes(play) == ["replay ok"] and play.of(Retried) == []


@pytest.mark.parametrize("why", NOT_RESUMED, ids=lambda f: f"{f.kind}-{f.body.decode()}")
def test_others_are_not(why: Failure) -> None:
    assert not resumable(why) and retryable(why) is (why.kind is FailureKind.STATUS)
    play = stage()
    play.says(0, ROLE, delta("Hel"))
    play.fails(0, why)
    assert play.over and "error" in play.frames[-1] and outcomes(play) == []


def test_what_a_chunk_shows_counts_too() -> None:
    play = stage(retries=3)
    for broken in (b"{", b'{"error": {"code": 502}}'):
        play.says(0, ROLE, delta("Hel"), broken)
        assert not play.open, "the call is ended"
        play.fires("retry:0")
    play.says(0, delta("Hello"))
    play.ends(0)  # cleanly, without a reason
    play.fires("retry:0")
    play.streams(0, delta("Hello you"), STOP)
    assert contents(play.frames) == {0: "Hello you"}
    assert outcomes(play) == ["replay failed", "replay failed", "replay ok"]


def test_off_is_off() -> None:
    play = stage(resume="off")
    play.says(0, ROLE, delta("Hel"))
    play.fails(0, FailureKind.CUT)
    assert play.over and "error" in play.frames[-1] and outcomes(play) == []


def test_a_cut_behind_every_finish_is_none() -> None:
    play = stage()
    play.says(0, ROLE, delta("Hello"), STOP)
    play.fails(0, FailureKind.CUT)
    assert play.finish == "ok" and Anomaly("cut_after_finish") in play.anomalies and outcomes(play) == []


def test_one_that_was_interrupted_first_gets_its_own_remedy() -> None:
    play = stage(chat(n=2, stream=True), retries=2)
    play.says(0, ROLE, DONE)
    play.ends(0, beside=True)
    play.says(1, ROLE, delta("x"), DONE)
    play.ends(1, beside=True)
    assert play.of(Retried) == [Retried(0, "interrupted")], "nothing of it was read"
    assert play.opened[-1].alone and "retry:1" in play.timers, "of the other something was"
    play.streams(0, delta("a"), STOP)
    play.fires("retry:1")
    assert play.opened[-1].alone
    play.streams(1, delta("xy"), STOP)
    assert contents(play.frames) == {0: "a", 1: "xy"}


# ---- attempts


def test_the_same_call_again_under_its_number_and_seed() -> None:
    play = stage(chat(n=2, stream=True, seed=5), retries=2)
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
    play = stage(chat(n=2, stream=True), retries=retries, budget=lambda: budget)
    play.says(0, ROLE, delta("x"))
    play.fails(0, FailureKind.CUT)
    play.streams(1)
    assert outcomes(play) == ["replay spent"] and contents(play.frames)[1] == "ab"
    assert "It failed" in play.frames[-1]["error"]["message"], "siblings run to their end first"


def test_a_retry_before_leaves_one_less() -> None:
    play = stage()
    play.fails(0, FailureKind.CONNECT)
    play.fires("retry:0")
    play.says(0, delta("x"))
    play.fails(0, FailureKind.CUT)
    assert play.over and outcomes(play) == ["replay spent"]


def test_a_second_call_that_does_not_come_about_is_tried_again() -> None:
    play = stage(retries=4)
    play.says(0, ROLE, delta("x"))
    play.fails(0, FailureKind.CUT)
    for why in (failure(FailureKind.CONNECT), failure(FailureKind.TIMEOUT), status(503)):
        play.fires("retry:0")
        play.fails(0, why)
    play.fires("retry:0")
    play.streams(0, delta("xy"), STOP)
    assert contents(play.frames) == {0: "xy"}
    assert outcomes(play) == ["replay failed"] * 3 + ["replay ok"]


def test_what_is_refused_is_not() -> None:
    play = stage(retries=4)
    play.says(0, ROLE, delta("x"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.fails(0, status(404))
    assert play.over and play.frames[-1]["error"]["message"] == "says 404"


def test_once_the_request_has_failed_nothing_is_resumed() -> None:
    play = stage(chat(n=2, stream=True))
    play.says(0, ROLE, delta("x"))
    play.says(1, ROLE, delta("y"))
    play.fails(0, FailureKind.OVERSIZE)
    play.fails(1, FailureKind.CUT)
    assert play.over and outcomes(play) == []


def test_the_choices_that_came_where_a_part_will_do() -> None:
    play = stage(chat(n=2, stream=True), partial=True)
    play.says(0, ROLE, delta("x"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.streams(0, delta("y"), STOP)
    play.streams(1)
    assert play.finish == "partial" and contents(play.frames) == {0: "x", 1: "ab"}
    assert outcomes(play) == ["replay differs"]


# ---- what comes again


TEXT = ["Hel", "lo, ", '"wörld"', "\n", "😀!", "\\"]


@pytest.mark.parametrize("at", range(1, len(TEXT) + 1))
@pytest.mark.parametrize("capability", [FANOUT, NATIVE, EXACT], ids=["fanout", "native", "exact"])
@pytest.mark.parametrize("key", ["content", "reasoning_content", "refusal"])
def test_cut_behind_any_event_and_cut_otherwise_the_second_time(at: int, capability: Capability, key: str) -> None:
    whole = "".join(TEXT)
    for border in range(len(whole) + 1):
        play = stage(chat(n=1, stream=True), capability)
        play.says(0, ROLE, *(delta(**{key: piece}) for piece in TEXT[:at]))
        play.fails(0, FailureKind.CUT)
        play.fires("retry:0")
        play.streams(0, ROLE, *(delta(**{key: part}) for part in (whole[:border], whole[border:]) if part), STOP)
        assert said(play, key) == whole and play.finish == "ok"


@pytest.mark.parametrize("at", range(1, len(TEXT) + 1))
def test_legacy_texts_and_their_offsets_run_on(at: int) -> None:
    def event(pieces: list[str]) -> bytes:
        starts = [sum(map(len, pieces[:place])) for place in range(len(pieces))]
        told = {"tokens": pieces, "token_logprobs": [-0.5] * len(pieces), "top_logprobs": None, "text_offset": starts}
        return text("".join(pieces), logprobs=told)

    for border in range(len(TEXT) + 1):
        play = stage(completion(stream=True, logprobs=1))
        play.says(0, *(event([piece]) for piece in TEXT[:at]))
        play.fails(0, FailureKind.CUT)
        play.fires("retry:0")
        play.streams(0, *(event(part) for part in (TEXT[:border], TEXT[border:]) if part), text("", finish="stop"))
        told = [choice["logprobs"] for choice in choices_in(play.frames) if choice["logprobs"]]
        assert contents(play.frames) == {0: "".join(TEXT)}
        assert [token for one in told for token in one["tokens"]] == TEXT
        starts = [sum(map(len, TEXT[:place])) for place in range(len(TEXT))]
        assert [offset for one in told for offset in one["text_offset"]] == starts


def test_the_rest_of_a_stream_is_rewritten_without_being_parsed() -> None:
    """Both calls are long enough for the fast road, whose bytes are hashed as they stand, escapes and all."""
    pieces = [f'{place}\n"é😀' for place in range(400)]
    play = stage(capability=NATIVE, request=chat(n=2, stream=True))
    play.says(0, ROLE, *(delta(piece) for piece in pieces[:300]))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    again = [delta(piece).replace("é".encode(), b"\\u00e9") for piece in pieces]
    play.streams(0, ROLE, *again, STOP, delta("other", index=1, finish="stop"))
    assert contents(play.frames) == {0: "".join(pieces), 1: "other"}


def test_half_a_character_was_sent() -> None:
    play = stage()
    play.says(0, ROLE, delta("x\ud83d"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.streams(0, delta("x😀"), STOP)
    assert said(play, "content").encode("utf-16-le", "surrogatepass").decode("utf-16-le") == "x😀"


def call(place: int, arguments: str, id: str | None = None, name: str | None = None) -> bytes:
    named = {"id": id, "type": "function"} if id else {}
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    return delta(tool_calls=[{"index": place, **named, "function": function}])


def calls_heard(play: Play) -> list[Any]:
    heard: dict[int, list[str]] = {}
    for choice in choices_in(play.frames):
        for part in choice["delta"].get("tool_calls", []):
            one = heard.setdefault(part["index"], ["", "", ""])
            one[0] += part.get("id", "")
            one[1] += part["function"].get("name", "")
            one[2] += part["function"].get("arguments", "")
    return [heard[place] for place in sorted(heard)]


FIRST = [call(0, "", "a1", "find"), call(0, '{"q'), call(0, '":1}'), call(1, "", "a2", "open"), call(1, '{"x":2}')]
AGAIN = [call(0, '{"q":', "b1", "find"), call(0, "1}"), call(1, '{"x"', "b2", "open"), call(1, ":2}")]


@pytest.mark.parametrize("at", range(1, len(FIRST) + 1))
@pytest.mark.parametrize("capability", [FANOUT, NATIVE, EXACT], ids=["fanout", "native", "exact"])
def test_calls_keep_the_ids_that_were_sent(at: int, capability: Capability) -> None:
    play = stage(chat(stream=True, n=1), capability)
    play.says(0, ROLE, *FIRST[:at])
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.streams(0, ROLE, *AGAIN, delta(finish="tool_calls"))
    ids = ["a1", "a2" if at > 3 else "b2"]
    assert calls_heard(play) == [[ids[0], "find", '{"q":1}'], [ids[1], "open", '{"x":2}']]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(call(0, '{"q', "b", "seek"), id="name"),
        pytest.param(call(0, '{"z', "b", "find"), id="arguments"),
        pytest.param(delta("text"), id="text"),
    ],
)
def test_another_call_is_another_answer(other: bytes) -> None:
    play = stage()
    play.says(0, ROLE, call(0, '{"q', "a", "find"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.says(0, other)
    assert play.finish == FailureKind.DIFFERS


def test_the_older_function_call_and_lists_of_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    first = delta(function_call={"name": "f", "arguments": "{"}, thinking_blocks=parts[:2])
    again = delta(function_call={"name": "f", "arguments": "{}"}, thinking_blocks=parts)
    play = stage()
    play.says(0, ROLE, first)
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.streams(0, again, STOP)
    new = [choice["delta"] for choice in choices_in(play.frames)][2]
    assert new == {"function_call": {"arguments": "}"}, "thinking_blocks": parts[2:]}


def test_a_part_that_is_longer_than_the_one_before_differs_at_once() -> None:
    play = stage()
    play.says(0, ROLE, delta(thinking_blocks=[{"type": "text", "text": "a"}]))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.says(0, delta(thinking_blocks=[{"type": "text", "text": "abc"}]))
    assert play.finish == FailureKind.DIFFERS and outcomes(play) == ["replay differs"]


def test_what_is_kept_does_not_grow_with_what_was_said() -> None:
    hear = Transcript().hear("content")
    hear(b"x")
    tracemalloc.start()
    try:
        for _ in range(1000):
            hear(b"0123456789" * 20)
        grown, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 8 * 1024 and most < 32 * 1024


@pytest.mark.parametrize("capability", [FANOUT, NATIVE], ids=["fanout", "native"])
def test_what_comes_again_beside_unknown_keys_is_swallowed_whole(capability: Capability) -> None:
    """Nothing of it is written, and nothing learned from it, by which the next one would pass unparsed."""
    events = [delta("ab", top={"p": "x"}) for _ in range(8)]
    play = stage(chat(n=2, stream=True), capability)
    play.says(0, *events)
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    before = len(play.frames)
    play.says(0, *events)
    assert len(play.frames) == before
    play.says(0, delta("c"))
    assert contents(play.frames)[0] == "ab" * 8 + "c"


def test_a_text_that_was_sent_leaves_its_frame_an_empty_one() -> None:
    play = stage(completion(stream=True))
    play.says(0, text("ab"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.streams(0, text("ab", finish="stop"), DONE)
    assert [(choice["text"], choice["finish_reason"]) for choice in choices_in(play.frames)] == [
        ("ab", None),
        ("", "stop"),
    ]


def test_log_probabilities_that_were_sent_leave_null() -> None:
    entries = [{"token": token, "logprob": -1.0} for token in "ab"]
    play = stage(chat(stream=True, logprobs=True))
    play.says(0, ROLE, delta("a", logprobs={"content": entries}))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.streams(0, delta("ab", logprobs={"content": entries}), STOP)
    told = [(choice["delta"].get("content"), choice["logprobs"]) for choice in choices_in(play.frames)]
    assert told[1:] == [("a", {"content": entries}), ("b", None), (None, None)]


@pytest.mark.parametrize("stream", [True, False])
def test_log_probabilities_stand_once_beside_their_text(stream: bool) -> None:
    def event(*tokens: str) -> bytes:
        entries = [{"token": token, "logprob": -1.0} for token in tokens]
        return delta("".join(tokens), logprobs={"content": entries, "refusal": None})

    play = stage(chat(stream=True, logprobs=True))
    play.says(0, ROLE, event("a"), event("b", "c"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.streams(0, event("a", "b"), event("c", "d"), event("e"), STOP)
    told = [(choice["delta"].get("content"), choice["logprobs"]) for choice in choices_in(play.frames)]
    behind = [(text, [entry["token"] for entry in logprobs["content"]]) for text, logprobs in told if logprobs]
    assert behind == [("a", ["a"]), ("bc", ["b", "c"]), ("d", ["d"]), ("e", ["e"])]


def test_log_probabilities_of_what_has_no_text_stand_once_too() -> None:
    def event(said: str, *tokens: str) -> bytes:
        return delta(said, logprobs={"content": [{"token": token, "logprob": -1.0} for token in tokens]})

    play = stage(chat(stream=True, logprobs=True))
    play.says(0, ROLE, event("a", "a"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.streams(0, event("a", "a", ""), event("", ""), event("b", "b"), STOP)
    entries = [choice["logprobs"]["content"] for choice in choices_in(play.frames) if choice["logprobs"]]
    assert [[entry["token"] for entry in told] for told in entries] == [["a"], [""], [""], ["b"]]


def test_what_stands_beside_a_delta_stands_once() -> None:
    def event(said: str, *ids: int) -> bytes:
        return chunk([{"index": 0, "delta": {"content": said}, "finish_reason": None, "token_ids": list(ids)}], p="x")

    play = stage(chat(stream=True, n=2))
    play.says(0, ROLE, event("a", 1), event("a", 1), event("a", 1))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.streams(0, event("aa", 1, 1), event("aab", 1, 1, 2), STOP)
    play.streams(1)
    ids = [choice.get("token_ids") for choice in choices_in(play.frames) if choice.get("token_ids")]
    assert contents(play.frames)[0] == "aaaab" and ids == [[1], [1], [1], [1, 2]]


@pytest.mark.parametrize(
    "again",
    [
        pytest.param((delta("Helpless"),), id="another text"),
        pytest.param((delta("He"), STOP), id="a shorter one"),
        pytest.param((delta("He"), delta(finish="length")), id="a shorter one for another reason"),
        pytest.param((delta(reasoning="hm"),), id="reasoning first"),
        pytest.param((STOP,), id="nothing"),
    ],
)
def test_another_answer_is_a_failure_and_siblings_live(again: tuple[bytes, ...]) -> None:
    play = stage(chat(n=2, stream=True), FANOUT)
    play.says(0, ROLE, delta("Hello"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.says(0, ROLE, *again)
    assert 0 not in play.open and not play.over
    play.streams(1)
    assert contents(play.frames) == {0: "Hello", 1: "ab"} and play.finish == FailureKind.DIFFERS
    assert "asked again" in play.frames[-1]["error"]["message"] and outcomes(play) == ["replay differs"]


def test_a_second_cut_behind_a_role_alone_is_a_cut_of_what_was_read() -> None:
    play = stage()
    play.says(0, ROLE, delta("a"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.says(0, ROLE)
    play.fails(0, FailureKind.CUT)
    assert play.over and outcomes(play) == ["replay failed", "replay spent"]


def test_a_second_cut_while_it_comes_again() -> None:
    play = stage(retries=3)
    play.says(0, ROLE, delta("abc"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.says(0, ROLE, delta("a"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.says(0, delta("abcd"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.streams(0, delta("ab"), delta("cdef"), STOP)
    assert contents(play.frames) == {0: "abcdef"} and outcomes(play) == ["replay failed"] * 2 + ["replay ok"]


# ---- legs of several choices, and what the rest of the answer is


@pytest.mark.parametrize("capability", [NATIVE, EXACT], ids=["native", "exact"])
def test_choices_of_a_leg_that_were_finished_stay_so(capability: Capability) -> None:
    play = stage(chat(n=3, stream=True, stream_options={"include_usage": True}), capability)
    play.says(0, delta("a", index=0), delta("b", index=1), delta(index=0, finish="stop"))
    play.fails(0, FailureKind.CUT)
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
    play = stage(completion(prompt=["p", "q"], n=1, stream=True))
    play.says(0, text("a", index=0), text("b", index=1))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    ends = [text("", index=index, finish="stop") for index in (0, 1)]
    play.streams(0, text("ab", index=0), text("bc", index=1), *ends)
    assert contents(play.frames) == {0: "ab", 1: "bc"}


def test_equal_choices_that_are_computed_once() -> None:
    play = stage(chat(n=3, stream=True, temperature=0), greedy="dedupe")
    play.says(0, ROLE, delta("a"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.streams(0, delta("ab"), STOP)
    assert contents(play.frames) == dict.fromkeys(range(3), "ab")


def test_a_relayed_stream_keeps_its_names() -> None:
    play = stage(chat(stream=True, stream_options={"include_usage": True}))
    play.says(0, *(event.replace(b"up-1", b"up-first") for event in (ROLE, *(delta(c) for c in "abcdef"))))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.streams(0, ROLE, *(delta(c) for c in "abcdefghijkl"), STOP, usage_chunk(3, 12), DONE)
    assert {frame["id"] for frame in play.frames[:-1]} == {"up-first"}
    assert contents(play.frames) == {0: "abcdefghijkl"} and play.frames[-2]["usage"]["completion_tokens"] == 12


def test_a_whole_answer_to_the_second_call() -> None:
    play = stage(chat(n=2, stream=True))
    play.says(0, ROLE, delta("Hel"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.answers(0, answer("Hello"))
    play.streams(1)
    assert contents(play.frames) == {0: "Hello", 1: "ab"}


def test_what_is_told_once_beside_choices_is_not_told_again() -> None:
    beside = chunk([], prompt_filter_results=[1])
    play = stage(chat(n=2, stream=True))
    play.says(0, beside, ROLE, delta("a"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.streams(0, beside, delta("ab"), STOP)
    play.streams(1)
    assert sum("prompt_filter_results" in frame for frame in play.frames[:-1]) == 1


def test_usage_is_the_completing_call_s_and_what_was_spent_is_in_the_metrics() -> None:
    play = stage(chat(n=2, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}))
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


def test_a_stream_that_is_folded_is_not_recorded_and_begins_anew() -> None:
    play = stage(chat(n=2), Capability(native_width=2, json_usage=False))
    play.says(0, delta("lost"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.streams(0, delta("new"), delta("too", index=1), STOP, delta(index=1, finish="stop"), usage_chunk(3, 4))
    assert [choice["message"]["content"] for choice in play.reply["choices"]] == ["new", "too"]
    assert outcomes(play) == [] and play.of(Retried) == [Retried(0, "cut")]


def test_the_body_is_the_same() -> None:
    play = stage()
    bodies: list[bytes] = []
    sent: Callable[[], bytes] = lambda: bytes(compose(play.request, play.capability, play.opened[-1].leg))  # noqa: E731
    bodies.append(sent())
    play.says(0, ROLE, delta("a"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    assert sent() == bodies[0]


def test_choices_that_take_turns_are_kept_apart_without_being_parsed() -> None:
    play = stage(chat(n=2, stream=True), NATIVE)
    play.says(0, *(delta(f"{index}{place}", index=index) for place in range(40) for index in (0, 1)))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    again = [delta(f"{index}{place}", index=index) for index in (1, 0) for place in range(50)]
    play.streams(0, *again, STOP, delta(index=1, finish="stop"))
    assert contents(play.frames) == {index: "".join(f"{index}{place}" for place in range(50)) for index in (0, 1)}


def test_a_relay_tells_what_stands_beside_choices_once_too() -> None:
    beside = chunk([], prompt_filter_results=[1])
    play = stage()
    play.says(0, beside, ROLE, delta("a"))
    play.fails(0, FailureKind.CUT)
    play.fires("retry:0")
    play.streams(0, beside, delta("ab"), STOP)
    assert sum("prompt_filter_results" in frame for frame in play.frames[:-1]) == 1


def test_what_the_request_is_at_fault_for_does_not_begin_anew() -> None:
    play = stage()
    play.says(0, ROLE)
    play.fails(0, FailureKind.OVERSIZE)
    assert play.over and play.of(Retried) == []
