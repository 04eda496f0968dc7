"""D: what a client sees of a merged stream."""

from __future__ import annotations

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.commands import CallEnded, CancelLeg
from nproxy.choices.events import FailureKind, LegBody, LegChunk, LegEnded
from nproxy.openai.dialect import Dialect
from tests.choices.conduct_player import (
    CREATED,
    EXACT,
    FANOUT,
    ID,
    MODEL,
    NATIVE,
    Play,
    chat,
    choices_in,
    completion,
    contents,
    dialect_request,
    finishes,
)
from tests.choices.upstream_says import DONE, OK_STREAM, answer, chunk, delta, text, usage_chunk

ROLE = {"role": "assistant", "content": ""}


def test_D1_roles_first_in_order_then_the_first_speaker() -> None:
    play = Play(chat(n=3, stream=True))
    play.says(2, delta("", role="assistant"), delta("hi"))
    said = [(choice["index"], choice["delta"]) for choice in choices_in(play.frames)]
    assert said == [(0, ROLE), (1, ROLE), (2, ROLE), (2, {"content": "hi"})]


@pytest.mark.parametrize(
    "first",
    [
        delta("", role="assistant"),
        delta(role="assistant", content=None),
        delta(role=None, content=""),
        chunk([{"index": 0, "delta": {"role": "assistant", "content": None}}]),
    ],
)
def test_D2_the_upstreams_role_chunk_is_not_repeated(first: bytes) -> None:
    play = Play(chat(n=2, stream=True))
    play.says(0, first, delta("x", role="assistant"), delta("y", role=None))
    said = [choice["delta"] for choice in choices_in(play.frames)]
    assert said == [ROLE, ROLE, {"content": "x"}, {"content": "y"}]


def test_D3_no_role_from_upstream() -> None:
    play = Play(chat(n=2, stream=True))
    play.says(1, delta("x"))
    assert [choice["delta"] for choice in choices_in(play.frames)] == [ROLE, ROLE, {"content": "x"}]


def test_D4_one_choice_per_chunk() -> None:
    play = Play(chat(n=3, stream=True), NATIVE)
    both = [{"index": i, "delta": {"content": str(i)}, "finish_reason": None} for i in (2, 0)]
    play.says(0, chunk(both))
    assert all(len(frame["choices"]) == 1 for frame in play.frames)
    assert contents(play.frames) == {0: "0", 1: "", 2: "2"}


@pytest.mark.parametrize("dialect", Dialect)
def test_D5_one_id_created_model_object(dialect: Dialect) -> None:
    play = Play(dialect_request(dialect, n=2, stream=True))
    said = delta("x") if dialect is Dialect.CHAT else text("x")
    for i in range(6):
        play.says(i % 2, said.replace(b'"up-1"', b'"up-%d"' % i).replace(b'"created":5', b'"created":%d' % i))
    shown = {(f["id"], f["created"], f["model"], f["object"]) for f in play.frames}
    assert shown == {(ID, CREATED, MODEL, dialect.chunk_object)}


def test_D6_a_leg_that_ends_early_is_seen_at_once() -> None:
    play = Play(chat(n=2, stream=True))
    play.says(0, delta("x"), delta(finish="stop"))
    assert finishes(play.frames) == [0]
    before = play.emitted
    play.says(0, delta("late"), delta(finish="stop"))
    assert play.emitted == before
    play.ends(0)
    assert not play.over
    play.streams(1)
    assert play.finish == "ok"


@pytest.mark.parametrize("capability", [FANOUT, NATIVE])
def test_D6_nothing_after_a_finish_however_usual_the_chunk(capability: Capability) -> None:
    play = Play(chat(n=2, stream=True), capability)
    play.says(0, *[delta(word) for word in "abcdef"], delta(finish="stop"), *[delta(word) for word in "ghi"])
    assert contents(play.frames) == {0: "abcdef", 1: ""}


@pytest.mark.parametrize("said", ["x", "xyz"], ids=["a word", "so many that they are known"])
@pytest.mark.parametrize("n", [1, 2])
def test_nothing_counts_after_done(n: int, said: str) -> None:
    play = Play(chat(n=n, stream=True), EXACT if n == 1 else FANOUT)
    play.says(0, *map(delta, said), DONE, delta("y"), delta(finish="stop"))
    assert contents(play.frames) == {0: said, **({1: ""} if n == 2 else {})}
    play.streams(1)
    play.ends(0)
    assert play.finish == "cut"


def test_D7_finish_twice_is_once() -> None:
    play = Play(chat(n=2, stream=True))
    play.says(0, delta("x", finish="stop"), delta(finish="length"))
    play.streams(1)
    play.ends(0)
    assert finishes(play.frames) == [0, 1]


@pytest.mark.parametrize("mark", [[], [DONE]])
def test_D8_no_finish_is_a_failure(mark: list[bytes]) -> None:
    play = Play(chat(n=2, stream=True))
    play.streams(0)
    play.says(1, delta("x"), *mark)
    play.ends(1)
    assert play.finish == "cut"
    assert "[DONE]" not in play.frames


def test_D9_done_once_and_last() -> None:
    play = Play(chat(n=2, stream=True))
    play.streams(0)
    assert "[DONE]" not in play.frames
    play.streams(1)
    assert play.frames.count("[DONE]") == 1


def test_D10_no_done_from_upstream_is_fine() -> None:
    play = Play(chat(n=2, stream=True))
    for leg in (0, 1):
        play.streams(leg, delta("x"), delta(finish="stop"))
    assert play.finish == "ok"


def test_legs_that_are_not_called_are_not_heard() -> None:
    play = Play(chat(n=2))
    nobody = 7
    for event in (LegChunk(nobody, delta("x")), LegBody(nobody, answer("x")), LegEnded(nobody)):
        assert play.gets(event) == []
    assert play.fails(nobody, FailureKind.CUT) == []
    for leg in (0, 1):
        play.answers(leg, answer("y"))
    assert play.finish == "ok"


def test_an_upstream_that_does_not_close_after_done_holds_nothing_up() -> None:
    play = Play(chat(n=2, stream=True))
    play.streams(0)
    play.says(1, delta("x", finish="stop"), DONE, DONE)
    assert play.timers["drain:1"] < 1
    play.says(1, DONE)
    play.fires("drain:1")
    assert play.finish == "ok"


def test_a_stream_may_take_its_time_between_its_last_choice_and_done() -> None:
    """Its usage comes there, and may take long to count."""
    play = Play(chat(n=2, stream=True, stream_options={"include_usage": True}))
    play.streams(0)
    play.says(1, delta("x", finish="stop"), b"null", b'{"choices":[]}')
    assert "drain:1" not in play.timers
    play.says(1, usage_chunk(5, 3), DONE)
    assert "drain:1" in play.timers


def test_nor_does_it_when_legs_that_wait_will_never_be_called() -> None:
    play = Play(chat(n=3, stream=True), Capability(parallel=2))
    play.says(0, delta("x"))
    play.fails(0, FailureKind.CUT)
    play.says(1, delta("x", finish="stop"), DONE)
    play.fires("drain:1")
    assert play.finish == "cut"


def test_nor_does_it_hold_up_a_leg_that_waits_for_its_place() -> None:
    play = Play(chat(n=3, stream=True), Capability(parallel=2))
    play.says(0, delta("x"))
    play.says(1, delta("x", finish="stop"), DONE)
    assert 2 not in play.open
    play.fires("drain:1")
    assert [*play.open] == [0, 2]
    play.says(0, delta("y", finish="stop"), DONE)
    assert play.ends(1) == [], "it was over"
    play.fires("drain:0")
    play.streams(2)
    assert play.finish == "ok"
    assert [ended.failure for ended in play.of(CallEnded)] == [None] * 3


def test_a_leg_that_closes_by_itself_is_not_waited_for() -> None:
    play = Play(chat(n=3, stream=True), Capability(parallel=2))
    play.gets(LegChunk(0, delta("x", finish="stop")), LegChunk(0, DONE), LegEnded(0))
    play.says(1, delta("x", finish="stop"), DONE)
    play.ends(1)
    assert set(play.timers) == {"headers", "ping", "drain:1"}
    play.fires("drain:1")
    assert [*play.open] == [2] and not play.of(CancelLeg)


def test_D15_a_stalled_leg_delays_no_sibling() -> None:
    play = Play(chat(n=3, stream=True))
    play.streams(2)
    play.streams(0)
    assert contents(play.frames) == {0: "ab", 1: "", 2: "ab"}


def test_what_is_ready_together_leaves_in_one_write() -> None:
    play = Play(chat(n=8, stream=True))
    play.gets(*(LegChunk(leg, delta("x")) for leg in range(8)))  # the play checks: at most one Emit per call
    assert contents(play.frames) == dict.fromkeys(range(8), "x")


def test_C5_the_first_speakers_fingerprint() -> None:
    play = Play(chat(n=2, stream=True))
    play.says(1, delta("x", top={"system_fingerprint": "fp_b"}))
    play.says(0, delta("x", top={"system_fingerprint": "fp_a"}))
    assert {frame["system_fingerprint"] for frame in play.frames} == {"fp_b"}


def test_C5_a_fingerprint_that_comes_late_stands_on_every_chunk_from_then_on() -> None:
    play = Play(chat(n=2, stream=True))
    play.says(0, *[delta(word) for word in "abcdef"])
    play.says(1, delta("x", top={"system_fingerprint": "fp"}))
    play.says(0, *[delta(word) for word in "ghi"])
    assert [frame.get("system_fingerprint") for frame in play.frames] == [None] * 8 + ["fp"] * 4


@pytest.mark.parametrize("options", [None, {"include_usage": True}])
def test_C5_a_fingerprint_that_only_the_usage_has_stands_there_only(options: dict[str, bool] | None) -> None:
    # vLLM: which of several calls ends first must not decide what the chunks of the others look like
    play = Play(chat(n=2, stream=True, stream_options=options))
    last = chunk([], usage={"prompt_tokens": 1, "completion_tokens": 1}, system_fingerprint="fp")
    play.streams(0, delta("x"), delta(finish="stop"), last, DONE)
    play.streams(1, delta("x"), delta(finish="stop"), last, DONE)
    told = [frame.get("system_fingerprint") for frame in play.frames if frame != "[DONE]"]
    assert told == [None] * 6 + (["fp"] if options else [])


def test_unknown_keys_ride_along() -> None:
    play = Play(chat(n=2, stream=True))
    play.says(1, delta("x", stop_reason=7, top={"timings": {"a": 1}}))
    frame = play.frames[-1]
    assert frame["timings"] == {"a": 1} and frame["choices"][0]["stop_reason"] == 7


def test_what_rides_with_a_role_chunk_is_not_lost() -> None:
    play = Play(chat(n=2, stream=True))
    play.says(1, delta("", role="assistant", top={"prompt_token_ids": [1, 2]}))
    assert play.frames[-1]["prompt_token_ids"] == [1, 2]


def test_a_stream_without_any_choice() -> None:
    play = Play(chat(n=2, stream=True))
    play.streams(0, chunk([]), DONE)
    play.streams(1)
    assert play.finish == "short"


@pytest.mark.parametrize("capability", [FANOUT, NATIVE])
def test_R8_an_event_that_is_null_says_nothing(capability: Capability) -> None:
    play = Play(chat(n=2, stream=True), capability)
    play.says(0, b"null")
    assert play.frames == []
    play.says(0, delta("x"), b" null ", delta("y"))
    assert contents(play.frames)[0] == "xy"


def test_a_surplus_choice_is_dropped_and_counted() -> None:
    play = Play(chat(n=2, stream=True))
    play.streams(0, delta("x"), delta("y", index=1), delta("y", index=-1), delta(finish="stop"))
    play.streams(1)
    assert contents(play.frames) == {0: "x", 1: "ab"}
    assert [a.kind for a in play.anomalies] == ["surplus_choice"]


def test_surplus_choices_of_one_call_are_counted_once() -> None:
    play = Play(chat(n=2, stream=True))
    play.streams(0, delta("x"), delta("y", index=1), delta("y", index=1), delta("z", index=2), delta(finish="stop"))
    play.streams(1)
    assert contents(play.frames) == {0: "x", 1: "ab"} and play.finish == "ok"
    assert [a.kind for a in play.anomalies] == ["surplus_choice"]


def test_K14_a_body_in_answer_to_a_stream() -> None:
    play = Play(chat(n=2, stream=True))
    body = (
        b'{"id":"u","choices":[{"index":0,"message":{"role":"assistant","content":"hi","tool_calls":[{"id":"c",'
        b'"type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}'
    )
    play.answers(0, body)
    play.streams(1)
    said = [(c["delta"], c["finish_reason"]) for c in choices_in(play.frames) if c["index"] == 0]
    assert [finish for _, finish in said] == [None, None, "tool_calls"]
    assert said[0][0] == ROLE
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert said[1][0] == {"content": "hi", "tool_calls": [call]}
    assert said[2][0] == {}


def test_R1_R2_roles_with_the_first_token_and_an_id_per_choice() -> None:
    play = Play(chat(n=2, stream=True), NATIVE)
    for i in (1, 0):
        play.says(0, delta("x", index=i, role="assistant").replace(b"up-1", b"up-%d" % i))
        play.says(0, delta("y", index=i).replace(b"up-1", b"up-%d" % i))
        play.says(0, delta(index=i, finish="stop").replace(b"up-1", b"up-%d" % i))
    play.gets(LegEnded(0))
    assert [c["delta"] for c in choices_in(play.frames)][:2] == [ROLE, ROLE]
    assert {frame["id"] for frame in play.frames[:-1]} == {ID}
    assert contents(play.frames) == {0: "xy", 1: "xy"}


def test_R5_frames_that_end_in_a_blank_and_tool_indices_that_carry_the_choice() -> None:
    play = Play(chat(n=2, stream=True), NATIVE)
    for i in (0, 1):
        call = {"index": i, "id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": ""}}
        rest = {"index": i, "function": {"arguments": "{}"}}
        play.says(0, delta(index=i, tool_calls=[call]) + b" ", delta(index=i, tool_calls=[rest]) + b" ")
        play.says(0, delta(index=i, finish="tool_calls") + b" ")
    play.ends(0)
    calls = [call for c in choices_in(play.frames) for call in c["delta"].get("tool_calls", [])]
    assert [call["index"] for call in calls] == [0, 0, 0, 0]


def test_J_completions_have_no_prelude() -> None:
    play = Play(completion(n=2, stream=True))
    play.says(1, text("x"))
    assert [(c["index"], c["text"]) for c in choices_in(play.frames)] == [(1, "x")]


@pytest.mark.parametrize(
    "begin", [b"", b"\n", b"\xef\xbb\xbf", b": PROCESSING\n\n", b"event: message\n", b"id: 1\n", b"retry: 5\n\n"]
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_K17_events_under_another_content_type(n: int, stream: bool, begin: bytes) -> None:
    play = Play(chat(n=n, stream=stream), FANOUT)
    body = begin + b"".join(b"data: " + event + b"\n\n" for event in OK_STREAM)
    for leg in range(n):
        play.answers(leg, body)
    if stream:
        assert contents(play.frames) == dict.fromkeys(range(n), "ab")
    else:
        assert [choice["message"]["content"] for choice in play.reply["choices"]] == ["ab"] * n


def test_K17_an_event_of_them_may_be_too_large() -> None:
    play = Play(chat(stream=True), FANOUT)
    play.answers(0, b"data: " + b" " * (17 << 20))
    assert play.finish == "oversize"
