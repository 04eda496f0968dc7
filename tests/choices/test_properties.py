"""What holds whatever the upstreams do, in whatever order, however the bytes are split."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nproxy.choices.capability import Capability
from nproxy.choices.commands import ChoiceFinished, OpenLeg
from nproxy.choices.events import Event, FailureKind, LegBody, LegChunk, LegEnded, LegFailed
from nproxy.choices.leg import Leg
from nproxy.choices.merge import Merge
from nproxy.choices.relay import Relay
from nproxy.choices.segments import read_segment
from nproxy.choices.settings import Names
from nproxy.openai.dialect import Dialect
from nproxy.openai.requests import Request
from nproxy.openai.sse import BETWEEN, SSEDecoder
from tests.choices.conduct_player import CREATED, ID, MODEL, Play, contents, dialect_request, finishes
from tests.choices.upstream_says import DONE, chunk, delta, failure, status, text, usage

Said = list[list[str]]  # per choice its tokens

tokens = st.text(max_size=5)
texts = st.lists(st.lists(tokens, max_size=5), min_size=1, max_size=5)


def choice_chunks(dialect: Dialect, index: int, said: list[str]) -> list[bytes]:
    """One choice's own events, as an upstream streams them."""
    if dialect is Dialect.COMPLETIONS:
        return [*(text(token, index=index) for token in said), text("", index=index, finish="stop")]
    spoken = [delta(token, index=index) for token in said]
    return [delta("", index=index, role="assistant"), *spoken, delta(index=index, finish="stop")]


def whole_answer(dialect: Dialect, said: Said) -> bytes:
    choices = []
    for index, parts in enumerate(said):
        spoken = "".join(parts)
        held = {"message": {"content": spoken}} if dialect is Dialect.CHAT else {"text": spoken}
        logprobs = {"content": [{"token": "t", "logprob": -float(len(spoken))}]}
        choices.append({"index": index, **held, "logprobs": logprobs, "finish_reason": "stop"})
    return json.dumps({"choices": choices, "usage": usage(3, len(said))}).encode()


def sse(events: list[bytes]) -> bytes:
    return b"".join(b"data: " + event + b"\r\n\r\n" for event in [*events, DONE])


def split(data: st.DataObject, body: bytes) -> list[bytes]:
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=8).map(sorted))
    return [body[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True)]


def play_interleaved(data: st.DataObject, play: Play, bodies: list[bytes]) -> None:
    """Hand over the legs' bytes in drawn pieces and a drawn order, several events of several legs in one call."""
    if data.draw(st.booleans()):
        bodies = [body.replace(b"\r\n", b"\n") for body in bodies]
    pieces = [split(data, body) for body in bodies]
    decoders = [SSEDecoder() for _ in bodies]
    batch: list[Event] = []
    while live := [leg for leg, left in enumerate(pieces) if left]:
        leg = data.draw(st.sampled_from(live))
        batch += read_segment(leg, decoders[leg], pieces[leg].pop(0))
        if not pieces[leg]:
            batch.append(LegEnded(leg))
        if data.draw(st.booleans()):
            play.gets(*batch)
            batch = []
    play.gets(*batch)


@given(data=st.data(), said=texts, dialect=st.sampled_from(Dialect))
def test_D16_any_interleaving_and_any_split_give_the_same_choices(
    data: st.DataObject, said: Said, dialect: Dialect
) -> None:
    play = Play(dialect_request(dialect, n=len(said), stream=True))
    play_interleaved(data, play, [sse(choice_chunks(dialect, 0, parts)) for parts in said])
    assert play.finish == "ok"
    joined = {index: "".join(parts) for index, parts in enumerate(said)}
    assert {index: contents(play.frames).get(index, "") for index in joined} == joined
    assert sorted(finishes(play.frames)) == list(joined)


@given(data=st.data(), said=texts, dialect=st.sampled_from(Dialect))
def test_the_folded_stream_equals_the_whole_answer(data: st.DataObject, said: Said, dialect: Dialect) -> None:
    """The same choices as a stream folded here, as a stream folded by the client, and as whole bodies: one answer."""
    n = len(said)
    bodies = [sse(choice_chunks(dialect, 0, parts)) for parts in said]
    folded = Play(dialect_request(dialect, n=n))
    play_interleaved(data, folded, bodies)
    whole = Play(dialect_request(dialect, n=n))
    for leg in data.draw(st.permutations(range(n))):
        whole.answers(leg, whole_answer(dialect, [said[leg]]))
    assert folded.finish == whole.finish == "ok"

    def said_in(play: Play) -> list[tuple[int, str, str]]:
        choices = play.reply["choices"]
        texts = [choice["message"]["content"] if "message" in choice else choice["text"] for choice in choices]
        return [(c["index"], spoken or "", c["finish_reason"]) for c, spoken in zip(choices, texts, strict=True)]

    assert said_in(folded) == said_in(whole)
    streamed = Play(dialect_request(dialect, n=n, stream=True))
    play_interleaved(data, streamed, bodies)
    assert [(i, contents(streamed.frames).get(i, "")) for i in range(n)] == [row[:2] for row in said_in(whole)]


@given(data=st.data(), said=texts, dialect=st.sampled_from(Dialect))
def test_one_wide_leg_equals_many_narrow_ones(data: st.DataObject, said: Said, dialect: Dialect) -> None:
    n = len(said)
    narrow = Play(dialect_request(dialect, n=n, stream=True))
    play_interleaved(data, narrow, [sse(choice_chunks(dialect, 0, parts)) for parts in said])
    wide = Play(dialect_request(dialect, n=n, stream=True), Capability(native_width=None))
    outputs = [choice_chunks(dialect, index, parts) for index, parts in enumerate(said)]
    mixed = []
    while live := [output for output in outputs if output]:
        mixed.append(data.draw(st.sampled_from(live)).pop(0))
    play_interleaved(data, wide, [sse(mixed)])
    shown = [{i: contents(play.frames).get(i, "") for i in range(n)} for play in (narrow, wide)]
    assert shown[0] == shown[1]


# ---- byte rewriting


class Forgetful:
    """A rewriter that never knows a chunk, so that all of them are parsed."""

    counts = False

    def swap(self, data: bytes) -> None:
        return None

    def learn(self, *_: Any) -> None:
        pass

    def swap_all(self, data: bytes) -> tuple[bytes, int, bytes]:
        return b"", 0, data

    def forget(self, index: int | None = None) -> None:
        pass


piece = st.one_of(
    st.builds(lambda token, i: (delta(token, index=i), text(token, index=i)), tokens, st.integers(0, 2)),
    st.builds(
        lambda token, i, extra: (
            delta(token, index=i, top={"x": extra}),
            text(token, index=i, logprobs={"tokens": [token], "text_offset": [0]}),
        ),
        tokens,
        st.integers(0, 2),
        st.integers(0, 1),
    ),
    st.builds(lambda token, i: (delta(index=i, reasoning=token), text(token, index=i)), tokens, st.integers(0, 1)),
    st.builds(lambda i: (delta(index=i, finish="stop"), text("", index=i, finish="stop")), st.integers(0, 1)),
    st.just((chunk([], system_fingerprint="fp"), chunk([], system_fingerprint="fp"))),
    st.just((chunk([], usage=usage(1, 1)), chunk([], usage=usage(1, 1)))),
    st.builds(
        lambda i: (delta("q", index=i).replace(b'"q"', b'"\\u00e9\\ud83d\\ude00\\/"'), text("é", index=i)),
        st.integers(0, 1),
    ),
)


# Deltas of tool calls as servers send them: known and new ids and names, several under one index, or under none.
called = st.builds(
    lambda i, at, id, kind, tool, name, arguments, x: (
        delta(
            index=i,
            tool_calls=[
                {**at, **id, **kind, tool: {**name, "arguments" if tool == "function" else "input": arguments}, **x}
            ],
        ),
        text(arguments, index=i),
    ),
    st.integers(0, 1),
    st.sampled_from([{"index": 0}, {"index": 0}, {"index": 0}, {"index": 1}, {}, {"index": None}]),
    st.sampled_from([{}, {}, {"id": "a"}, {"id": "b"}, {"id": None}, {"id": ""}]),
    st.sampled_from([{}, {"type": "function"}, {"type": "function"}, {"type": "custom"}, {"type": None}]),
    st.sampled_from(["function", "function", "function", "custom"]),
    st.sampled_from([{}, {}, {}, {"name": "f"}, {"name": "g"}, {"name": None}]),
    tokens,
    st.sampled_from([{}, {}, {}, {"x": 1}]),
)


def saying(event: bytes, word: str) -> bytes:
    """The delta of a call with something before its arguments."""
    said = json.dumps(word)[1:-1].encode()
    return event.replace(b'"arguments":"', b'"arguments":"' + said).replace(b'"input":"', b'"input":"' + said)


calls_run = st.builds(
    lambda one, words: [(saying(one[0], word), one[1]) for word in words],
    called,
    st.lists(tokens, min_size=3, max_size=6),
)

# Runs of plain chunks, which is what a rewriter learns from, with anything at all between them.
plain_run = st.builds(
    lambda i, words: [(delta(word, index=i), text(word, index=i)) for word in words],
    st.integers(0, 1),
    st.lists(tokens, min_size=3, max_size=6),
)
runs = st.lists(
    st.one_of(plain_run, calls_run, st.lists(piece | called, max_size=3)).flatmap(
        lambda forms: st.integers(0, 1).map(lambda leg: [(leg, form) for form in forms])
    ),
    max_size=12,
).map(lambda parts: [event for part in parts for event in part])


def rewritten_as_parsed(
    request: Request, events: list[tuple[int, bytes]], legs: list[Leg], kind: Callable[..., Merge]
) -> None:
    """Compare what is written for events one by one, for all that come together, and if each of them is parsed."""

    def merged(*, parse_all: bool) -> Merge:
        merge = kind(request, Names(ID, CREATED, MODEL))
        for leg in legs:
            merge.legs.add(leg)
            if parse_all:
                merge.outputs[leg.number].rewriter = Forgetful()  # type: ignore[assignment]
        return merge

    parsing, rewriting, together = merged(parse_all=True), merged(parse_all=False), merged(parse_all=False)
    for leg, event in events:
        assert rewriting.chunk(leg, event) == parsing.chunk(leg, event)
        assert b"".join(rewriting.frames) == b"".join(parsing.frames)
    for leg, those in groupby(events, itemgetter(0)):
        rest = together.chunks(leg, BETWEEN.join(event for _, event in those))
        for event in filter(None, rest.split(BETWEEN)):
            together.chunk(leg, event)
    assert b"".join(together.frames) == b"".join(parsing.frames)


@given(pieces=runs, dialect=st.sampled_from(Dialect), asked=st.booleans(), relayed=st.booleans())
def test_byte_rewriting_equals_full_parsing(
    pieces: list[tuple[int, tuple[bytes, bytes]]], dialect: Dialect, asked: bool, relayed: bool
) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if asked else {}
    request = dialect_request(dialect, n=4, stream=True, **options)
    column = 0 if dialect is Dialect.CHAT else 1
    events = [(0 if relayed else leg, forms[column]) for leg, forms in pieces]
    legs = [Leg(0, 0, 4)] if relayed else [Leg(0, 0, 2), Leg(1, 2, 2)]
    rewritten_as_parsed(request, events, legs, Relay if relayed else Merge)


@pytest.mark.parametrize("kind", [Merge, Relay])
@pytest.mark.parametrize(
    "anew",
    [
        {"index": 0, "function": {"name": "g", "arguments": ""}},
        {"index": 0, "id": "b", "function": {"name": "f", "arguments": "x"}},
        {"index": 0, "type": "custom", "function": {"arguments": "x"}},
        {"id": "b", "function": {"name": "f", "arguments": ""}},
    ],
)
def test_what_is_new_of_a_call_changes_what_follows(anew: dict[str, Any], kind: type[Merge]) -> None:
    begins = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
    more = [{"index": 0, "type": "function", "function": {"arguments": said}} for said in "abcd"]
    events = [(0, delta(tool_calls=[call])) for call in (begins, *more, anew, *more)]
    rewritten_as_parsed(dialect_request(Dialect.CHAT, n=2, stream=True), events, [Leg(0, 0, 2)], kind)


def test_a_text_beside_a_foreign_delta_is_rewritten() -> None:
    """A legacy completion whose choice has an object under `delta`; blanks, so that it is written anew."""
    events = [
        (0, chunk([{"index": 0, "text": said, "delta": {"k": 1}}], model="q").replace(b'"model":"q"', b'"model" : "q"'))
        for said in "abcdefg"
    ]
    request = dialect_request(Dialect.COMPLETIONS, stream=True)
    rewritten_as_parsed(request, events, [Leg(0, 0, 1)], partial(Relay, shown="S"))


@settings(derandomize=True, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts=st.lists(calls_run | st.lists(called, min_size=1, max_size=2), max_size=8),
    kind=st.sampled_from([Merge, Relay]),
)
def test_arguments_of_calls_are_rewritten_as_they_are_parsed(
    parts: list[list[tuple[bytes, bytes]]], kind: type[Merge]
) -> None:
    events = [(0, chat) for part in parts for chat, _ in part]
    rewritten_as_parsed(dialect_request(Dialect.CHAT, n=2, stream=True), events, [Leg(0, 0, 2)], kind)


# ---- failures of every kind, at every moment

FAULTS: list[Callable[[int], Event]] = [
    *(lambda leg, kind=kind: LegFailed(leg, failure(kind)) for kind in FailureKind if kind is not FailureKind.STATUS),
    *(lambda leg, code=code: LegFailed(leg, status(code)) for code in (400, 401, 403, 429, 500, 503)),
    lambda leg: LegFailed(leg, status(400, b'{"error":{"message":"n must be 1","param":"n"}}')),
    lambda leg: LegFailed(leg, status(400, b'{"error":{"message":"unknown seed"}}')),
    lambda leg: LegChunk(leg, b'{"error":{"message":"in band"}}'),
    lambda leg: LegChunk(leg, b"oops", "error"),
    lambda leg: LegChunk(leg, b"{"),
    lambda leg: LegBody(leg, b"<html>"),
    lambda leg: LegBody(leg, b'{"choices":[]}'),
    lambda leg: LegEnded(leg),
]


def call_events(data: st.DataObject, play: Play, opened: OpenLeg, calm: bool) -> Iterator[Event]:
    """What one call does: it answers as it should, or brings fewer choices, or fails at a drawn moment."""
    assert play.plan is not None
    request, leg, number = play.request, opened.leg, opened.leg.number
    promised = len(leg.client_indices(play.plan.n, request.prompts))
    brought = promised if calm or data.draw(st.booleans()) else data.draw(st.integers(0, promised))
    said = [["a", "b"]] * brought
    as_stream = request.stream if calm else data.draw(st.booleans())
    events: list[Event] = []
    if as_stream:
        chunks = [c for i, parts in enumerate(said) for c in choice_chunks(request.dialect, i, parts)]
        events += [LegChunk(number, c) for c in [*chunks, chunk([], usage=usage(3, brought)), DONE]]
    else:
        events.append(LegBody(number, whole_answer(request.dialect, said)))
    events.append(LegEnded(number))
    if not calm and data.draw(st.booleans()):
        events[data.draw(st.integers(0, len(events) - 1)) :] = [data.draw(st.sampled_from(FAULTS))(number)]
        if not isinstance(events[-1], LegEnded | LegFailed):
            events.append(LegEnded(number))
    yield from events


def drive(data: st.DataObject, play: Play, calm: Callable[[OpenLeg], bool]) -> None:
    """A driver that does what it is told, while calls and timers go on in a drawn order, until the request is over."""
    going: dict[int, tuple[OpenLeg, Iterator[Event]]] = {}
    for _ in range(3000):
        if play.over:
            return
        for number, opened in play.open.items():
            if number not in going or going[number][0] is not opened:
                going[number] = opened, call_events(data, play, opened, calm(opened))
        moves = [number for number in play.open if number in going]
        timers = [name for name in play.timers if name != "ping" and (name != "headers" or data.draw(st.booleans()))]
        if timers and (not moves or data.draw(st.integers(0, 9)) == 0):
            play.fires(data.draw(st.sampled_from(sorted(timers))))
            continue
        assert moves, "nothing is going on, and the request is not over"
        number = data.draw(st.sampled_from(moves))
        event = next(going[number][1])
        play.gets(event)
    raise AssertionError("it never ends")


capabilities = st.builds(
    Capability,
    native_width=st.sampled_from([None, 1, 2, 3]),
    n_untested=st.booleans(),
    exact=st.booleans(),
    seed=st.booleans(),
    prompt_lists=st.booleans(),
    parallel=st.sampled_from([None, 1, 2]),
    prefix_cache=st.booleans(),
)


def any_request(data: st.DataObject) -> Request:
    dialect = data.draw(st.sampled_from(Dialect))
    fields: dict[str, Any] = {"n": data.draw(st.integers(1, 5)), "stream": data.draw(st.booleans())}
    if dialect is Dialect.COMPLETIONS:
        fields["prompt"] = ["p"] * data.draw(st.integers(1, 2))
    if fields["stream"] and data.draw(st.booleans()):
        fields["stream_options"] = {"include_usage": True}
    if data.draw(st.booleans()):
        fields["temperature"] = 0
    if not fields["stream"] and data.draw(st.booleans()):
        fields["best_of"] = fields["n"] + data.draw(st.integers(0, 2))
    elif data.draw(st.booleans()):
        fields["choice_params"] = [{"seed": 7}] * fields["n"]
    return dialect_request(dialect, **fields)


@settings(max_examples=200, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow], deadline=None)
@given(data=st.data(), capability=capabilities, retries=st.integers(0, 2))
def test_whatever_happens_it_ends_once_with_all_choices_or_an_error(
    data: st.DataObject, capability: Capability, retries: int
) -> None:
    """The play checks after every step: one Finish, last; n choices with success; no call left; `parallel` kept."""
    play = Play(
        any_request(data),
        capability,
        retries=retries,
        budget=lambda: data.draw(st.booleans()),
        greedy=data.draw(st.sampled_from(["accept", "dedupe"])),
        partial=data.draw(st.booleans()),
    )
    drive(data, play, calm=lambda _: False)
    assert play.over


@settings(max_examples=60, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow], deadline=None)
@given(data=st.data(), capability=capabilities)
def test_without_failures_every_choice_finishes_once(data: st.DataObject, capability: Capability) -> None:
    play = Play(any_request(data), capability, greedy=data.draw(st.sampled_from(["accept", "dedupe"])))
    drive(data, play, calm=lambda _: True)
    assert play.finish == "ok"
    finished = sorted(command.index for command in play.of(ChoiceFinished))
    assert finished == list(range(play.request.choices))


@settings(max_examples=60, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow], deadline=None)
@given(data=st.data(), capability=capabilities)
def test_a_first_attempt_that_fails_is_made_good(data: st.DataObject, capability: Capability) -> None:
    """Retries granted, every leg's first call refused or reset before its first event: no client sees it."""
    play = Play(any_request(data), capability, retries=1)
    first = [FailureKind.CONNECT, FailureKind.STALE, FailureKind.RESET]
    refused: set[int] = set()
    for _ in range(200):
        if play.over:
            break
        fresh = [number for number in play.open if number not in refused]
        if fresh:
            refused.add(fresh[0])
            play.fails(fresh[0], data.draw(st.sampled_from(first)))
        elif play.open:
            opened = data.draw(st.sampled_from(list(play.open.values())))
            play.gets(*call_events(data, play, opened, calm=True))
        else:
            play.fires(next(name for name in play.timers if name.startswith("retry")))
    assert play.finish == "ok"
