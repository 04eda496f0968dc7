"""However a request's calls are cut, chunked and interleaved: resumed by replay, the client reads what was said.

One leg may fail for good at any time. What the client had begun to read of others it then reads to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nproxy.choices.capability import Capability
from nproxy.choices.commands import Begin, CallEnded
from nproxy.choices.events import Event, FailureKind, LegChunk, LegEnded, LegFailed
from nproxy.choices.plan import make_plan
from nproxy.openai.dialect import Dialect
from tests.choices.conduct_player import EXACT, FANOUT, NATIVE, Play, choices_in, dialect_request, finishes
from tests.choices.upstream_says import DONE, delta, failure, text, usage, usage_chunk

CUTS = [
    lambda leg: [LegFailed(leg, failure(FailureKind.CUT))],
    lambda leg: [LegFailed(leg, failure(FailureKind.TIMEOUT))],
    lambda leg: [LegEnded(leg)],
    lambda leg: [LegChunk(leg, DONE), LegEnded(leg)],
    lambda leg: [LegChunk(leg, b"{")],
    lambda leg: [LegChunk(leg, b'{"error":{"message":"died","code":500}}')],
]
CALLS = {"first": 0, "second": 1}
NOTHING: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "scored": [], "offsets": []}


@dataclass(frozen=True)
class Token:
    """One token of a choice. channel: content, reasoning, or the name of a tool call whose arguments it is of."""

    channel: str
    text: str


tokens = st.lists(
    st.builds(Token, st.sampled_from(["content", "content", "reasoning", *CALLS]), st.text(max_size=4)), max_size=8
)
halves = st.just([Token("content", "\ud83d"), Token("content", "\ude00")])  # a character in two chunks
said_by_choice = st.lists(st.one_of(tokens, halves), min_size=1, max_size=3)


def rendered(data: st.DataObject, said: list[Token], index: int, *, chat: bool, scored: bool) -> Iterator[bytes]:
    """A choice as one call streams it: chunks of any number of tokens, ids of this call's own, escapes as it likes."""
    if chat:
        yield delta("", index=index, role="assistant")
    begun: set[str] = set()
    at = 0
    while at < len(said):
        some = said[at : at + data.draw(st.integers(1, 3))]
        at += len(some)
        entries = [{"token": token.text, "logprob": -0.5} for token in some if token.channel == "content"]
        joined = {
            channel: "".join(token.text for token in some if token.channel == channel)
            for channel in dict.fromkeys(token.channel for token in some)
        }
        if not chat:
            spoken = "".join(token.text for token in some)
            starts = [sum(len(token.text) for token in some[:place]) for place in range(len(some))]
            yield text(spoken, index=index, logprobs=legacy(some, starts) if scored else None)
            continue
        calls: list[Any] = []
        for name in (channel for channel in joined if channel in CALLS):
            call: dict[str, Any] = {"index": CALLS[name], "function": {"arguments": joined[name]}}
            if name not in begun:
                begun.add(name)
                call |= {"id": f"call-{data.draw(st.integers(0, 99))}", "type": "function"}
                call["function"]["name"] = name
            calls.append(call)
        more: dict[str, Any] = {key: joined[key] for key in ("content", "reasoning") if key in joined}
        more |= {"tool_calls": calls} if calls else {}
        raw = delta(index=index, logprobs={"content": entries} if scored else None, **more)
        yield raw.replace(b"a", b"\\u0061") if data.draw(st.integers(0, 9)) == 0 and b'"a"' in raw else raw
    yield delta(index=index, finish="stop") if chat else text("", index=index, finish="stop")


def legacy(some: list[Token], starts: list[int]) -> dict[str, Any]:
    scores = [-0.5] * len(some)
    return {"tokens": [t.text for t in some], "token_logprobs": scores, "top_logprobs": None, "text_offset": starts}


def one_call(data: st.DataObject, play: Play, number: int, said: list[list[Token]], scored: bool) -> list[bytes]:
    """All events of one call, its choices taking turns."""
    chat = play.request.dialect is Dialect.CHAT
    opened = play.open[number].leg
    outputs = [
        list(rendered(data, said[opened.client_index(place, len(said))], place, chat=chat, scored=scored))
        for place in range(opened.choices(1))
    ]
    mixed: list[bytes] = []
    while live := [output for output in outputs if output]:
        mixed.append(data.draw(st.sampled_from(live)).pop(0))
    tokens = sum(len(said[opened.client_index(place, len(said))]) for place in range(opened.choices(1)))
    return [*mixed, usage_chunk(7, tokens), DONE]


@given(
    data=st.data(),
    said=said_by_choice,
    dialect=st.sampled_from(Dialect),
    capability=st.sampled_from([FANOUT, NATIVE, EXACT, Capability(native_width=2, parallel=1)]),
    scored=st.booleans(),
)
def test_the_client_reads_what_was_said(
    data: st.DataObject, said: list[list[Token]], dialect: Dialect, capability: Capability, scored: bool
) -> None:
    if dialect is Dialect.COMPLETIONS:
        said = [[Token("content", token.text) for token in choice] for choice in said]
    n = len(said)
    asked: dict[str, Any] = {"logprobs": True if dialect is Dialect.CHAT else 1} if scored else {}
    request = dialect_request(dialect, n=n, seed=5, stream=True, stream_options={"include_usage": True}, **asked)
    play = Play(request, capability, retries=9, resume="replay")
    cuts = {number: data.draw(st.integers(0, 2)) for number in range(n)}
    legs = make_plan(request, capability, lambda: 0).legs
    doomed = data.draw(st.none() | st.integers(0, len(legs) - 1))
    broken: set[int] = set()
    going: dict[int, tuple[Any, list[Event]]] = {}
    while not play.over:
        for number, opened in play.open.items():
            if number not in going or going[number][0] is not opened:
                events: list[Event] = [LegChunk(number, event) for event in one_call(data, play, number, said, scored)]
                if cuts[number] and len(events) > 3:
                    cuts[number] -= 1
                    broken.add(number)
                    at = data.draw(st.integers(1, len(events) - 3))  # behind an event, before the last finish
                    events[at:] = data.draw(st.sampled_from(CUTS))(number)
                elif number == doomed:
                    at = data.draw(st.integers(0, len(events) - 3))
                    events[at:] = [LegFailed(number, failure(FailureKind.OVERSIZE))]
                else:
                    events.append(LegEnded(number))
                    broken.discard(number)
                going[number] = opened, events
        timers = [name for name in play.timers if name.startswith("retry")]
        if not play.open or (timers and data.draw(st.booleans())):
            play.fires(data.draw(st.sampled_from(timers)))
            continue
        number = data.draw(st.sampled_from(sorted(play.open)))
        left = going[number][1]
        count = data.draw(st.integers(1, len(left)))
        now, left[:] = left[:count], left[count:]
        play.gets(*now)
    fatal = [call.leg for call in play.of(CallEnded) if call.failure and call.failure.kind is FailureKind.OVERSIZE]
    lost = [index for number in fatal for index in legs[number].client_indices(n, 1)]
    assert play.finish == ("oversize" if lost else "ok")
    frames = play.frames if play.of(Begin) else []
    finished = finishes(frames)
    assert sorted(finished) == [index for index in range(n) if index in finished]
    for index in set(range(n)).difference(lost):
        came = heard(frames, index)
        assert came == (meant(said[index], scored, dialect) if index in finished else NOTHING)
        assert lost or index in finished
    if broken.isdisjoint(going) and not lost:  # a leg whose last call broke off had brought its choices, and no usage
        assert play.frames[-2]["usage"] == usage(7, sum(map(len, said)))
    assert set(play.resumed) <= {"replay ok", "replay failed"}


def heard(frames: list[Any], index: int) -> dict[str, Any]:
    """What a client puts together of one choice: its texts by channel, its tool calls, its log probabilities."""
    texts = {"content": "", "reasoning": ""}
    calls: dict[int, dict[str, str]] = {}
    scored: list[str] = []
    offsets: list[int] = []
    for choice in choices_in(frames):
        if choice["index"] != index:
            continue
        spoken = choice.get("delta") or {"content": choice.get("text")}
        for key in ("content", "reasoning"):
            texts[key] += spoken.get(key) or ""
        for call in spoken.get("tool_calls", []):
            known = calls.setdefault(call["index"], {"ids": "", "name": "", "arguments": ""})
            known["ids"] += "x" if call.get("id") else ""
            known["name"] += call["function"].get("name", "")
            known["arguments"] += call["function"].get("arguments", "")
        logprobs = choice.get("logprobs") or {}
        scored += [entry["token"] for entry in logprobs.get("content") or []] + logprobs.get("tokens", [])
        offsets += logprobs.get("text_offset", [])
    joined = {key: whole(value) for key, value in texts.items()}
    return {**joined, "calls": [calls[at] for at in sorted(calls)], "scored": scored, "offsets": offsets}


def meant(said: list[Token], scored: bool, dialect: Dialect) -> dict[str, Any]:
    """The same of what was said."""
    texts = {key: whole("".join(t.text for t in said if t.channel == key)) for key in ("content", "reasoning")}
    order = [channel for channel, _ in groupby(t.channel for t in said)]
    calls = [
        {"ids": "x", "name": name, "arguments": "".join(t.text for t in said if t.channel == name)}
        for name in dict.fromkeys(channel for channel in order if channel in CALLS)
    ]
    entries = [t.text for t in said if t.channel == "content"] if scored else []
    starts = [sum(len(t.text) for t in said[:place]) for place in range(len(said))]
    legacy_offsets = starts if scored and dialect is Dialect.COMPLETIONS else []
    return {**texts, "calls": calls, "scored": entries, "offsets": legacy_offsets}


def whole(text: str) -> str:
    """With halves of characters put together, as a client does that reads UTF-16."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
