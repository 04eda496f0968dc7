"""The usual chunk is not parsed once it is known, whatever a rule changes in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nproxy.choices import merge
from nproxy.choices.capability import Capability
from nproxy.choices.commands import CallEnded, Command, Emit, Spent
from nproxy.choices.events import LegChunk, LegChunks, LegEnded
from nproxy.choices.reading import read_chunk
from nproxy.openai.chunks import UpstreamChunk
from nproxy.openai.dialect import Dialect
from nproxy.openai.sse import BETWEEN
from tests.choices.conduct_player import ALIASED, EXACT, FANOUT, NATIVE, Play, chat, contents
from tests.choices.upstream_says import DONE, delta, usage

ASKED = {"include_usage": True}
EACH = {**ASKED, "continuous_usage_stats": True}

USUAL: dict[str, tuple[dict[str, Any], Capability, Callable[[str], bytes]]] = {
    "as it came": ({}, NATIVE, lambda said: delta(said)),
    "nulls to drop": ({}, NATIVE, lambda said: delta(said, top={"usage": None})),
    "nulls to add": ({"stream_options": ASKED}, NATIVE, lambda said: delta(said)),
    "an alias": ({}, ALIASED, lambda said: delta(said)),
    "a role each time": ({}, NATIVE, lambda said: delta(said, role="assistant")),
    "of a merge": ({"n": 2}, FANOUT, lambda said: delta(said, role="assistant")),
    "nulls in between": ({}, NATIVE, lambda said: delta(said, top={"usage": None, "x": 1})),
    "no calls": ({}, NATIVE, lambda said: delta(said, role=None, reasoning_content=None, tool_calls=None)),  # SGLang
    "no calls, merged": ({"n": 2}, FANOUT, lambda said: delta(said, tool_calls=None)),
    "a call": ({}, NATIVE, lambda said: delta(tool_calls=[{"index": 0, "function": {"arguments": said}}])),
    "a call, merged": (
        {"n": 2},
        FANOUT,
        lambda said: delta(tool_calls=[{"index": 1, "id": "c", "type": "function", "function": {"arguments": said}}]),
    ),
    "an empty list of calls": ({}, NATIVE, lambda said: delta(said, tool_calls=[])),
    "an empty list of calls, merged": ({"n": 2}, FANOUT, lambda said: delta(said, tool_calls=[])),
    "log probabilities": ({"logprobs": True}, NATIVE, lambda said: delta(said, logprobs=rated(said))),
    "log probabilities and nulls": (
        {"logprobs": True, "stream_options": ASKED},
        ALIASED,
        lambda said: delta(said, logprobs=rated(said), top={"x": None}),
    ),
    "log probabilities, merged": ({"n": 2, "logprobs": True}, FANOUT, lambda said: delta(said, logprobs=rated(said))),
    "a padding": ({}, NATIVE, lambda said: delta(said, top={"usage": None, "obfuscation": ord(said) % 9 * "x"})),
    "a padding, merged": ({"n": 2}, FANOUT, lambda said: delta(said, top={"obfuscation": ord(said) % 9 * "x"})),
    "another time in each": ({}, NATIVE, lambda said: delta(said, top={"created": ord(said)})),
    "another time in each, and nulls": ({}, ALIASED, lambda said: delta(said, top={"created": ord(said), "x": None})),
    "another time in each, merged": ({"n": 2}, FANOUT, lambda said: delta(said, top={"created": ord(said)})),
    "the text twice, merged": ({"n": 2}, FANOUT, lambda said: delta("", reasoning=said, reasoning_content=said)),
    "usage in each": ({}, NATIVE, lambda said: counting(said)),
    "usage in each, of one choice": ({"stream_options": EACH}, NATIVE, lambda said: counting(said)),
    "usage in each, an alias": ({"stream_options": EACH}, ALIASED, lambda said: counting(said)),
    "usage in each, for the end": ({"stream_options": ASKED}, NATIVE, lambda said: counting(said)),
    "usage in each, merged": ({"n": 2, "stream_options": EACH}, FANOUT, lambda said: counting(said)),
    "usage in each, merged, for the end": ({"n": 2, "stream_options": ASKED}, FANOUT, lambda said: counting(said)),
    "usage in each, of our engine": ({"stream_options": EACH}, EXACT, lambda said: counting(said)),
    "the same for several choices": ({"n": 3, "temperature": 0}, FANOUT, lambda said: delta(said)),
}


def counting(said: str) -> bytes:
    return delta(said, top={"usage": usage(7, ord(said) - 96)})


def rated(said: str) -> dict[str, Any]:
    return {"content": [{"token": said, "logprob": -ord(said) / 7, "bytes": [ord(said)], "top_logprobs": []}]}


def playing(shape: str) -> Play:
    options, capability, _ = USUAL[shape]
    return Play(chat(stream=True, **options), capability, greedy="dedupe")


@pytest.mark.parametrize("shape", USUAL)
def test_a_usual_chunk_is_parsed_until_it_is_known(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the client gets the same as where every chunk is parsed."""
    said = USUAL[shape][2]
    events = [said(text) for text in "abcdefg"]
    expected = playing(shape)
    for event in events:
        expected.conduct._merge.outputs[0].forget()
        expected.says(0, event)
    parsed: list[bytes] = []

    def counted(data: bytes, dialect: Dialect) -> UpstreamChunk:
        parsed.append(data)
        return read_chunk(data, dialect)

    monkeypatch.setattr(merge, "read_chunk", counted)
    play = playing(shape)
    play.says(0, *events)
    assert play.emitted == expected.emitted
    assert len(parsed) <= 3


@pytest.mark.parametrize("asked", [EACH, ASKED, {}])
@pytest.mark.parametrize("capability", [FANOUT, NATIVE, EXACT], ids=["merged", "relayed", "of our engine"])
def test_E12_usage_in_each_chunk_is_counted_where_it_is_not_parsed(
    asked: dict[str, Any], capability: Capability
) -> None:
    """Two choices, in turns; then both finish."""

    def finish(index: int) -> bytes:
        return delta(finish="stop", index=index, top={"usage": usage(7, 26)})

    plays = [Play(chat(stream=True, n=2, stream_options=asked), capability) for _ in range(2)]
    for at, letter in enumerate("aabbccddefg"):
        leg, index = (at % 2, 0) if capability is FANOUT else (0, at % 2)
        said = delta(letter, index=index, top={"usage": usage(7, at + 1)})
        for play, forgetful in zip(plays, (False, True), strict=True):
            if forgetful:
                play.conduct._merge.outputs[leg].forget()
            play.says(leg, said)
    for play in plays:
        for index in range(2):
            play.says(*((index, finish(0)) if capability is FANOUT else (0, finish(index))))
        for leg in range(2 if capability is FANOUT else 1):
            play.says(leg, DONE)
            play.ends(leg)
    quick, slow = plays
    assert quick.emitted == slow.emitted
    assert quick.of(Spent) == slow.of(Spent)
    assert quick.over


def test_E12_a_total_is_not_ahead_of_what_is_written() -> None:
    """Of several chunks that come together, the last one must be parsed."""
    apart, together = (Play(chat(stream=True, n=2, stream_options=EACH), FANOUT) for _ in range(2))
    chunks = [delta(letter, top={"usage": usage(7, at + 1)}) for at, letter in enumerate("abcdef")]
    chunks += [delta("\ud83d", top={"usage": usage(7, 7)})]  # half a character
    for events in (chunks[:3], chunks[3:]):
        apart.gets(*(LegChunk(0, event) for event in events))
        together.gets(LegChunks(0, BETWEEN.join(events), len(events)))
    assert together.emitted == apart.emitted
    assert [frame["usage"] and frame["usage"]["completion_tokens"] for frame in together.frames] == [
        *(None, None),
        *range(1, 8),
    ]


@pytest.mark.parametrize("shape", USUAL)
def test_those_that_come_together_are_written_as_those_that_come_apart(shape: str) -> None:
    """Before anything is known, in mid-stream, and with a finish behind them."""
    said = USUAL[shape][2]
    segments = [[said("a"), said("b")], [said("c"), said("d"), said("e")], [said("f"), said("g"), delta(finish="stop")]]
    apart, together = playing(shape), playing(shape)
    for events in segments:
        apart.gets(*(LegChunk(0, event) for event in events))
        together.gets(LegChunks(0, BETWEEN.join(events), len(events)))
    assert together.emitted == apart.emitted
    assert together.conduct._merge.outputs[0].whole


def test_K12_log_probabilities_that_are_no_json_end_the_leg() -> None:
    play = Play(chat(stream=True, n=2, logprobs=True), FANOUT)
    play.says(0, *(delta(letter, logprobs=rated(letter)) for letter in "abc"))
    before = play.emitted
    play.says(0, delta("d", logprobs="?").replace(b'"?"', b'{"content":[}'))
    (ended,) = play.of(CallEnded)
    assert ended.failure is not None
    assert b'{"content":[}' not in play.emitted[len(before) :]


def touched_one_by_one(play: Play, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The chunks that are merged one by one from now on."""
    touched: list[bytes] = []
    one_by_one = play.conduct._merge.chunk

    def chunk(*event: Any) -> Any:
        touched.append(event[1])
        return one_by_one(*event)

    monkeypatch.setattr(play.conduct._merge, "chunk", chunk)
    return touched


def test_of_several_that_came_together_the_usual_ones_are_not_touched_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = Play(chat(stream=True), NATIVE)
    play.says(0, delta("a"), delta("b"), delta("c"))
    touched = touched_one_by_one(play, monkeypatch)
    end = delta(finish="stop")
    play.gets(LegChunks(0, BETWEEN.join([delta("d"), delta("e"), delta("f"), end]), 4))
    assert touched == [end]
    assert contents(play.frames) == {0: "abcdef"}


def test_a_stream_that_comes_in_one_piece_is_mostly_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(chat(stream=True), NATIVE)
    touched = touched_one_by_one(play, monkeypatch)
    whole = [delta("", role="assistant"), *map(delta, "abcdefghij"), delta(finish="stop")]
    play.gets(LegChunks(0, BETWEEN.join(whole), len(whole)))
    assert len(touched) <= 5
    assert contents(play.frames) == {0: "abcdefghij"}


def test_those_of_a_leg_that_is_not_called_any_more_are_passed_over() -> None:
    play = Play(chat(stream=True, n=2), FANOUT)
    play.says(0, delta("a"))
    play.gets(LegEnded(0))
    before = play.emitted
    play.gets(LegChunks(0, BETWEEN.join([delta("b"), delta("c")]), 2))
    assert play.emitted == before


TEXTS = [
    *"abcdefghijklmnopqrstuvwxyz",
    "",
    '"',
    "\\",
    "\u00e9",
    "\U0001f600",
    "\ud83d",
    "}]",
    '","content":"x',
    "\x7fslot0\x7f",
    "\n",
]
OF_DELTA = ["reasoning", "refusal", "name", "message"]
OF_CHOICE = ["logprobs", "token_ids", "text", "x", "usage"]
OF_CHUNK = ["obfuscation", "usage", "y"]
fixed = st.sampled_from([None, "", [], {}, 0, 0.5, "v", ["v"], {"content": []}, usage(7, 3)])


def members(keys: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(keys), st.just("it changes") | fixed, max_size=2)


def changing(key: str, place: int) -> Any:
    """Another value of a member with each chunk."""
    rated = {"content": [{"token": "t", "logprob": -place / 7}]}
    own = {"usage": usage(7, place + 1), "logprobs": rated, "message": {"content": f"m{place}"}, "token_ids": [place]}
    return own.get(key, f"v{place}")


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """The chunks of a leg: alike but for texts, and for values that change with each of them."""
    shapes = draw(st.tuples(st.just({}) | members(OF_DELTA), members(OF_CHOICE), members(OF_CHUNK)))
    indices, backwards, ascii_only, times = draw(st.tuples(st.sampled_from([1, 1, 2]), *[st.booleans()] * 3))
    chunks = []
    for place in range(draw(st.integers(8, 20))):
        delta, choice, top = (
            {key: changing(key, place) if value == "it changes" else value for key, value in shape.items()}
            for shape in shapes
        )
        content, finish = draw(st.sampled_from(TEXTS)), draw(st.sampled_from([None] * 24 + ["stop"]))
        own = {"index": place % indices, "delta": {"content": content} | delta, **choice, "finish_reason": finish}
        value = {"id": "u", "created": place // 3 if times else 5, "choices": [own], **top}
        if backwards:
            value = dict(reversed(value.items()))
        chunks.append(json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace"))
    return chunks


@settings(derandomize=True, deadline=None, max_examples=600)
@given(
    chunks=streams(),
    cuts=st.lists(st.integers(1, 5), min_size=20, max_size=20),
    asked=st.sampled_from([{}, {"stream_options": ASKED}, {"stream_options": EACH}]),
    capability=st.sampled_from([FANOUT, NATIVE, EXACT, ALIASED]),
    n=st.integers(1, 3),
    resume=st.sampled_from([*["off"] * 6, "replay", "continue"]),
)
def test_D16_whatever_is_not_parsed_comes_out_as_if_it_were(
    chunks: list[bytes], cuts: list[int], asked: dict[str, Any], capability: Capability, n: int, resume: Any
) -> None:
    parsed, apart, together = (Play(chat(stream=True, n=n, **asked), capability, resume=resume) for _ in range(3))
    for event in chunks:
        if parsed.conduct._merge.outputs:
            parsed.conduct._merge.outputs[0].forget()
        parsed.gets(LegChunk(0, event))
        apart.gets(LegChunk(0, event))
    at = 0
    for count in cuts:
        events = chunks[at : at + count]
        if events:
            together.gets(LegChunks(0, BETWEEN.join(events), len(events)))
        at += count
    wanted = frames_of(parsed)
    for play in (apart, together):
        assert frames_of(play) == wanted
        assert counted(play.everything) == counted(parsed.everything)


def frames_of(play: Play) -> list[Any]:
    """What the client reads. Values beside a text may have other blanks and forms of numbers."""
    return [[*frame.items()] if isinstance(frame, dict) else frame for frame in play.frames]


def counted(commands: Sequence[Command]) -> list[str]:
    """All but the output, in any order: several events at once may report things in another one."""
    return sorted(repr(command) for command in commands if not isinstance(command, Emit))
