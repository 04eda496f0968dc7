"""Replay: what comes again is compared with what the client has, and swallowed; it reads on where it was."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.events import FailureKind
from nproxy.choices.replay import Transcript
from tests.choices.conduct_player import EXACT, FANOUT, NATIVE, Play, chat, choices_in, completion, contents, replayed
from tests.choices.upstream_says import DONE, ROLE, STOP, chunk, delta, text


def said(play: Play, key: str, index: int = 0) -> str:
    """The client's text of one channel of one choice."""
    texts = (choice["delta"].get(key) for choice in choices_in(play.frames) if choice["index"] == index)
    return "".join(text or "" for text in texts)


def part_of(key: str, said: str) -> bytes:
    """A chunk that says something under this key of its delta."""
    more: dict[str, Any] = {key: said}
    return delta(**more)


TEXT = ["Hel", "lo, ", '"wörld"', "\n", "😀!", "\\"]


@pytest.mark.parametrize("at", range(1, len(TEXT) + 1))
@pytest.mark.parametrize("capability", [FANOUT, NATIVE, EXACT], ids=["fanout", "native", "exact"])
@pytest.mark.parametrize("key", ["content", "reasoning_content", "refusal"])
def test_cut_behind_any_event_and_cut_otherwise_the_second_time(at: int, capability: Capability, key: str) -> None:
    whole = "".join(TEXT)
    for border in range(len(whole) + 1):
        play = replayed(chat(n=1, stream=True), capability)
        play.breaks_off(0, ROLE, *(part_of(key, piece) for piece in TEXT[:at]))
        play.fires("retry:0")
        play.streams(0, ROLE, *(part_of(key, part) for part in (whole[:border], whole[border:]) if part), STOP)
        assert said(play, key) == whole and play.finish == "ok"


@pytest.mark.parametrize("at", range(1, len(TEXT) + 1))
def test_legacy_texts_and_their_offsets_run_on(at: int) -> None:
    def event(pieces: list[str]) -> bytes:
        starts = [sum(map(len, pieces[:place])) for place in range(len(pieces))]
        told = {"tokens": pieces, "token_logprobs": [-0.5] * len(pieces), "top_logprobs": None, "text_offset": starts}
        return text("".join(pieces), logprobs=told)

    for border in range(len(TEXT) + 1):
        play = replayed(completion(stream=True, logprobs=1))
        play.breaks_off(0, *(event([piece]) for piece in TEXT[:at]))
        play.fires("retry:0")
        play.streams(0, *(event(part) for part in (TEXT[:border], TEXT[border:]) if part), text("", finish="stop"))
        told = [choice["logprobs"] for choice in choices_in(play.frames) if choice["logprobs"]]
        assert contents(play.frames) == {0: "".join(TEXT)}
        assert [token for one in told for token in one["tokens"]] == TEXT
        starts = [sum(map(len, TEXT[:place])) for place in range(len(TEXT))]
        assert [offset for one in told for offset in one["text_offset"]] == starts


def test_the_rest_of_a_stream_is_rewritten_without_being_parsed() -> None:
    """Both calls are long enough for the fast path, whose bytes are hashed as they stand, escapes and all."""
    pieces = [f'{place}\n"é😀' for place in range(400)]
    play = replayed(capability=NATIVE, request=chat(n=2, stream=True))
    play.breaks_off(0, ROLE, *(delta(piece) for piece in pieces[:300]))
    play.fires("retry:0")
    again = [delta(piece).replace("é".encode(), b"\\u00e9") for piece in pieces]
    play.streams(0, ROLE, *again, STOP, delta("other", index=1, finish="stop"))
    assert contents(play.frames) == {0: "".join(pieces), 1: "other"}


def test_half_a_character_was_sent() -> None:
    play = replayed()
    play.breaks_off(0, ROLE, delta("x\ud83d"))
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
    play = replayed(chat(stream=True, n=1), capability)
    play.breaks_off(0, ROLE, *FIRST[:at])
    play.fires("retry:0")
    play.streams(0, ROLE, *AGAIN, delta(finish="tool_calls"))
    ids = ["a1", "a2" if at > 3 else "b2"]
    assert calls_heard(play) == [[ids[0], "find", '{"q":1}'], [ids[1], "open", '{"x":2}']]


def test_calls_that_took_turns_may_come_one_behind_the_other() -> None:
    play = replayed()
    turns = [call(0, '{"q', "a1", "find"), call(1, '{"x"', "a2", "open"), call(0, '":1}'), call(1, ":2")]
    play.breaks_off(0, ROLE, *turns)
    play.fires("retry:0")
    play.streams(0, call(0, '{"q":1}', "b1", "find"), call(1, '{"x":2}', "b2", "open"), delta(finish="tool_calls"))
    assert calls_heard(play) == [["a1", "find", '{"q":1}'], ["a2", "open", '{"x":2}']]


def test_what_is_no_call_has_its_place() -> None:
    play = replayed()
    play.breaks_off(0, ROLE, delta(tool_calls=["ab", "c"]))
    play.fires("retry:0")
    play.streams(0, delta(tool_calls=["abd", "ce"]), STOP)
    assert [choice["delta"] for choice in choices_in(play.frames)][2] == {"tool_calls": ["d", "e"]}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(call(0, '{"q', "b", "seek"), id="name"),
        pytest.param(call(0, '{"z', "b", "find"), id="arguments"),
        pytest.param(delta("text"), id="text"),
    ],
)
def test_another_call_is_another_answer(other: bytes) -> None:
    play = replayed()
    play.breaks_off(0, ROLE, call(0, '{"q', "a", "find"))
    play.fires("retry:0")
    play.says(0, other)
    assert play.finish == FailureKind.DIFFERS


def test_the_older_function_call_and_lists_of_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    first = delta(function_call={"name": "f", "arguments": "{"}, thinking_blocks=parts[:2])
    again = delta(function_call={"name": "f", "arguments": "{}"}, thinking_blocks=parts)
    play = replayed()
    play.breaks_off(0, ROLE, first)
    play.fires("retry:0")
    play.streams(0, again, STOP)
    new = [choice["delta"] for choice in choices_in(play.frames)][2]
    assert new == {"function_call": {"arguments": "}"}, "thinking_blocks": parts[2:]}


def test_a_part_that_is_new_beside_one_that_was_sent_is_not_lost() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    play = replayed()
    play.breaks_off(0, ROLE, delta(thinking_blocks=parts[:1]))
    play.fires("retry:0")
    play.streams(0, delta(thinking_blocks=parts), STOP)
    assert [choice["delta"] for choice in choices_in(play.frames)][2] == {"thinking_blocks": parts[1:]}


def test_an_empty_name_is_none_that_was_sent() -> None:
    play = replayed()
    play.breaks_off(0, ROLE, delta(audio={"id": "", "data": "a"}))
    play.fires("retry:0")
    play.streams(0, delta(audio={"id": "x", "data": "ab"}), STOP)
    assert [choice["delta"] for choice in choices_in(play.frames)][2] == {"audio": {"id": "x", "data": "b"}}


def test_a_part_that_is_longer_than_the_one_before_differs_at_once() -> None:
    play = replayed()
    play.breaks_off(0, ROLE, delta(thinking_blocks=[{"type": "text", "text": "a"}]))
    play.fires("retry:0")
    play.says(0, delta(thinking_blocks=[{"type": "text", "text": "abc"}]))
    assert play.finish == FailureKind.DIFFERS and play.resumed == ["replay differs"]


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
    play = replayed(chat(n=2, stream=True), capability)
    play.breaks_off(0, *events)
    play.fires("retry:0")
    before = len(play.frames)
    play.says(0, *events)
    assert len(play.frames) == before
    play.says(0, delta("c"))
    assert contents(play.frames)[0] == "ab" * 8 + "c"


def test_a_text_that_was_sent_leaves_its_frame_an_empty_one() -> None:
    play = replayed(completion(stream=True))
    play.breaks_off(0, text("ab"))
    play.fires("retry:0")
    play.streams(0, text("ab", finish="stop"), DONE)
    assert [(choice["text"], choice["finish_reason"]) for choice in choices_in(play.frames)] == [
        ("ab", None),
        ("", "stop"),
    ]


def test_log_probabilities_that_were_sent_leave_null() -> None:
    entries = [{"token": token, "logprob": -1.0} for token in "ab"]
    play = replayed(chat(stream=True, logprobs=True))
    play.breaks_off(0, ROLE, delta("a", logprobs={"content": entries}))
    play.fires("retry:0")
    play.streams(0, delta("ab", logprobs={"content": entries}), STOP)
    told = [(choice["delta"].get("content"), choice["logprobs"]) for choice in choices_in(play.frames)]
    assert told[1:] == [("a", {"content": entries}), ("b", None), (None, None)]


@pytest.mark.parametrize("stream", [True, False])
def test_log_probabilities_stand_once_beside_their_text(stream: bool) -> None:
    def event(*tokens: str) -> bytes:
        entries = [{"token": token, "logprob": -1.0} for token in tokens]
        return delta("".join(tokens), logprobs={"content": entries, "refusal": None})

    play = replayed(chat(stream=True, logprobs=True))
    play.breaks_off(0, ROLE, event("a"), event("b", "c"))
    play.fires("retry:0")
    play.streams(0, event("a", "b"), event("c", "d"), event("e"), STOP)
    told = [(choice["delta"].get("content"), choice["logprobs"]) for choice in choices_in(play.frames)]
    behind = [(text, [entry["token"] for entry in logprobs["content"]]) for text, logprobs in told if logprobs]
    assert behind == [("a", ["a"]), ("bc", ["b", "c"]), ("d", ["d"]), ("e", ["e"])]


def test_log_probabilities_of_what_has_no_text_stand_once_too() -> None:
    def event(said: str, *tokens: str) -> bytes:
        return delta(said, logprobs={"content": [{"token": token, "logprob": -1.0} for token in tokens]})

    play = replayed(chat(stream=True, logprobs=True))
    play.breaks_off(0, ROLE, event("a", "a"))
    play.fires("retry:0")
    play.streams(0, event("a", "a", ""), event("", ""), event("b", "b"), STOP)
    entries = [choice["logprobs"]["content"] for choice in choices_in(play.frames) if choice["logprobs"]]
    assert [[entry["token"] for entry in told] for told in entries] == [["a"], [""], [""], ["b"]]


def test_log_probabilities_of_another_answer_are_not_sent() -> None:
    def event(said: str, *tokens: str) -> bytes:
        return delta(said, logprobs={"content": [{"token": token, "logprob": -1.0} for token in tokens]})

    play = replayed(chat(stream=True, logprobs=True))
    play.breaks_off(0, ROLE, event("hello", "hello"))
    play.fires("retry:0")
    sent = play.emitted
    play.says(0, ROLE, event("by", "by"), event("e", "e"))
    assert b'"e"' not in play.emitted.removeprefix(sent) and play.resumed == ["replay differs"]


def test_what_stands_beside_each_chunk_may_come_more_often() -> None:
    def event(said: str) -> bytes:
        return chunk([{"index": 0, "delta": {"content": said}, "finish_reason": None, "flags": ["safe"]}])

    play = replayed(chat(stream=True, n=2))
    play.breaks_off(0, event("abc"))
    play.fires("retry:0")
    play.streams(0, *map(event, "abcd"), STOP)
    play.streams(1)
    assert contents(play.frames)[0] == "abcd" and play.resumed == ["replay ok"]


def test_what_stands_beside_a_delta_stands_once() -> None:
    def event(said: str, *ids: int) -> bytes:
        beside = {"token_ids": list(ids), "odd": 7}
        return chunk([{"index": 0, "delta": {"content": said}, "finish_reason": None, **beside}], p="x")

    play = replayed(chat(stream=True, n=2))
    play.breaks_off(0, ROLE, event("a", 1), event("a", 1), event("a", 1))
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
    play = replayed(chat(n=2, stream=True), FANOUT)
    play.breaks_off(0, ROLE, delta("Hello"))
    play.fires("retry:0")
    play.says(0, ROLE, *again)
    assert 0 not in play.open and not play.over
    play.streams(1)
    assert contents(play.frames) == {0: "Hello", 1: "ab"} and play.finish == FailureKind.DIFFERS
    assert "the repeated answer differs" in play.frames[-1]["error"]["message"] and play.resumed == ["replay differs"]


def test_a_second_cut_behind_a_role_alone_is_a_cut_of_what_was_read() -> None:
    play = replayed()
    play.breaks_off(0, ROLE, delta("a"))
    play.fires("retry:0")
    play.breaks_off(0, ROLE)
    assert play.over and play.resumed == ["replay failed", "replay spent"]


def test_a_second_cut_while_it_comes_again() -> None:
    play = replayed(retries=3)
    play.breaks_off(0, ROLE, delta("abc"))
    play.fires("retry:0")
    play.breaks_off(0, ROLE, delta("a"))
    play.fires("retry:0")
    play.breaks_off(0, delta("abcd"))
    play.fires("retry:0")
    play.streams(0, delta("ab"), delta("cdef"), STOP)
    assert contents(play.frames) == {0: "abcdef"} and play.resumed == ["replay failed"] * 2 + ["replay ok"]
