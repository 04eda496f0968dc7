"""The usual chunk is not parsed once it is known, whatever a rule changes in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nproxy.choices import merge
from nproxy.choices.capability import Capability
from nproxy.choices.reading import read_chunk
from nproxy.openai.chunks import UpstreamChunk
from nproxy.openai.dialect import Dialect
from tests.choices.tutil import ALIASED, FANOUT, NATIVE, Play, chat
from tests.choices.upstream_says import delta

ASKED = {"include_usage": True}

USUAL: dict[str, tuple[dict[str, Any], Capability, Callable[[str], bytes]]] = {
    "as it came": ({}, NATIVE, lambda said: delta(said)),
    "nulls to drop": ({}, NATIVE, lambda said: delta(said, top={"usage": None})),
    "nulls to add": ({"stream_options": ASKED}, NATIVE, lambda said: delta(said)),
    "an alias": ({}, ALIASED, lambda said: delta(said)),
    "a role each time": ({}, NATIVE, lambda said: delta(said, role="assistant")),
    "of a merge": ({"n": 2}, FANOUT, lambda said: delta(said, role="assistant")),
    "nulls in between": ({}, NATIVE, lambda said: delta(said, top={"usage": None, "x": 1})),
}


@pytest.mark.parametrize("shape", USUAL)
def test_a_usual_chunk_is_parsed_until_it_is_known(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the client gets the same as where every chunk is parsed."""
    options, capability, said = USUAL[shape]
    events = [said(text) for text in "abcdefg"]
    expected = Play(chat(stream=True, **options), capability)
    for event in events:
        expected.conduct._merge.strand(0).forget()
        expected.says(0, event)
    parsed: list[bytes] = []

    def counted(data: bytes, dialect: Dialect) -> UpstreamChunk:
        parsed.append(data)
        return read_chunk(data, dialect)

    monkeypatch.setattr(merge, "read_chunk", counted)
    play = Play(chat(stream=True, **options), capability)
    play.says(0, *events)
    assert play.emitted == expected.emitted
    assert len(parsed) <= 3
