"""D11: an upstream that is exact is relayed at any width, and comes out as Merge would write it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nproxy.choices.leg import Leg
from nproxy.choices.merge import Merge
from nproxy.choices.relay import Relay
from nproxy.choices.settings import Names
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import dumps
from nproxy.openai.sse import SSEDecoder
from nproxy.openai.usage import Usage
from nproxy.openai.wire import DONE_FRAME, Wire
from tests.choices.conduct_player import (
    ALIASED,
    EXACT,
    MODEL,
    NATIVE,
    Play,
    chat,
    completion,
    contents,
    dialect_request,
)
from tests.choices.upstream_says import DONE, answer, delta, framed, text

ASKED = {"include_usage": True}


script = st.lists(
    st.tuples(st.integers(0, 2), st.text(max_size=4).filter(lambda s: s.isprintable() or "\n" in s)), max_size=12
)


def exact_stream(dialect: Dialect, wire: Wire, said: list[tuple[int, str]], tail: bool) -> list[bytes]:
    frames = [wire.prelude(range(3))]
    frames += [wire.text(index, token) for index, token in said if token]
    frames += [wire.text(index, "", finish_reason="stop") for index in (1, 0, 2)]
    frames += [wire.usage_tail(Usage(3, 9))] if tail else []
    events = SSEDecoder().feed(b"".join([*frames, DONE_FRAME]))
    return [event.data for event in events]


def written(merge: Merge, events: list[bytes]) -> bytes:
    merge.legs.add(Leg(0, 0, 3))
    for data in events:
        merge.chunk(0, data)
    assert merge.end(0) == []
    return b"".join([*merge.frames, merge.close()])


@given(said=script, dialect=st.sampled_from(Dialect), asked=st.booleans(), fingerprint=st.sampled_from([None, "fp"]))
def test_D11_on_exact_input_relay_and_merge_write_the_same(
    said: list[tuple[int, str]], dialect: Dialect, asked: bool, fingerprint: str | None
) -> None:
    options: dict[str, Any] = {"stream_options": ASKED} if asked else {}
    request = dialect_request(dialect, n=3, stream=True, **options)
    wire = Wire(dialect, "id", 7, MODEL, fingerprint, include_usage=asked)
    events = exact_stream(dialect, wire, said, tail=asked)
    relayed = written(Relay(request, Names("own", 1, MODEL)), events)
    assert relayed == framed(*events)
    assert relayed == written(Merge(request, Names("id", 7, MODEL)), events)


@given(
    said=st.lists(st.text(max_size=6), min_size=2, max_size=8),
    nulls=st.booleans(),
    asked=st.booleans(),
    alias=st.booleans(),
)
def test_patched_bytes_say_what_full_writing_would(said: list[str], nulls: bool, asked: bool, alias: bool) -> None:
    options: dict[str, Any] = {"stream_options": ASKED} if asked else {}
    top: dict[str, Any] = {"usage": None} if nulls else {}
    events = [delta("", role="assistant", top=top), *(delta(s, top=top) for s in said), delta(finish="stop", top=top)]
    play = Play(chat(stream=True, **options), ALIASED if alias else NATIVE)
    play.streams(0, *events, DONE)
    for event, frame in zip(events, play.frames[: len(events)], strict=True):
        wanted = json.loads(event)
        wanted.pop("usage", None)
        wanted |= ({"usage": None} if asked else {}) | ({"model": MODEL} if alias else {})
        assert list(frame) == list(wanted) and frame == wanted


def test_an_exact_upstream_is_relayed_at_any_width() -> None:
    body = dumps(json.loads(answer("a", "b", "c", tokens=3)))
    play = Play(chat(n=3), EXACT)
    play.answers(0, body)
    assert play.respond.body == body and play.way.mode == "relay"


def test_C7_an_exact_upstream_that_is_short_is_topped_up_all_the_same() -> None:
    play = Play(chat(n=2), EXACT)
    play.answers(0, answer("a", tokens=1))
    play.answers(1, answer("b", tokens=1))
    assert [choice["message"]["content"] for choice in play.reply["choices"]] == ["a", "b"]
    play = Play(completion(n=2, stream=True), EXACT)
    play.streams(0, text("a", finish="stop"), DONE)
    play.streams(1, text("b", finish="stop"), DONE)
    assert contents(play.frames) == {0: "a", 1: "b"} and len({frame["id"] for frame in play.frames[:-1]}) == 1
