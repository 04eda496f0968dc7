"""Makes templates of chunks, and proves them with marks in the places of the values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from nproxy.openai.chunks import MalformedChunk, UpstreamChunk, parse_chunk
from nproxy.openai.dialect import Dialect
from nproxy.openai.places import NAMES, USAGE, Place, Values, beginning, find_value, opening, value_in, with_values
from nproxy.openai.sse import BETWEEN
from nproxy.openai.templates import Mixture, Template

Render = Callable[[Values, bytes], bytes]
"""Writes the client's frames for a chunk with other values in some places. Takes the chunk's bytes with these, too."""

_MOST_VALUES = 6


class Cut(NamedTuple):
    """A chunk cut at its values: one piece of bytes more than there are values."""

    constants: tuple[bytes, ...]
    places: tuple[Place, ...]
    """In the order in which their values stand in the chunk."""


def cut(data: bytes, chunk: UpstreamChunk, text: Place, span: tuple[int, int], others: Sequence[Place]) -> Cut | None:
    """Cut a chunk at its text, which is in `span`, and at other values; None if one of these is not found."""
    if not others:
        return Cut((data[: span[0]], data[span[1] :]), (text,))
    spans = [(*span, text)]
    for place in others:
        try:
            found = find_value(data, place[-1], value_in(chunk.came, place))
        except (LookupError, TypeError, ValueError):
            return None
        if found is None:
            return None
        spans.append((*found, place))
    spans.sort()
    if any(start < end for (_, end, _), (start, _, _) in pairwise(spans)):
        return None
    edges = [0, *(edge for start, end, _ in spans for edge in (start, end)), len(data)]
    constants = tuple(data[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))
    return Cut(constants, tuple(place for _, _, place in spans))


class _Mark(NamedTuple):
    """What stands for a value while a template is made. What has it already makes none."""

    value: str
    escaped: bytes
    """As the upstream writes it. Only what is kept as it came is still written so for the client."""
    written: bytes
    """As it is written after parsing."""


_MARKS = [
    _Mark(f"\x7fslot{at}\x7f", b"\\u007fslot%d\\u007f" % at, b"\x7fslot%d\x7f" % at) for at in range(_MOST_VALUES)
]


def make(
    parts: Cut, text: Place, chunk: UpstreamChunk, data: bytes, dialect: Dialect, render: Render
) -> Template | None:
    """Make a template of a chunk, and prove it: with other values in the places nothing else of it may change.

    Returns None if there can be none.
    """
    constants, places = parts
    marker = (opening if places[0] == text else beginning)(places[0][-1]).search(constants[0])
    if marker is None or marker.end() != len(constants[0]) or len(places) > _MOST_VALUES:
        return None  # what leads to the first value is looked for, so it must not stand before
    marks = _MARKS[: len(places)]
    if (b"slot" in data or b"\\u00" in data) and _has_mark(render({}, data), marks):
        return None
    values = {place: mark.value for place, mark in zip(places, marks, strict=True)}
    marked = _marked(parts, text, marks)
    if not _differs_only_in(values, marked, chunk, dialect):
        return None
    frame = render(values, marked)
    at_text = places.index(text)
    kept = marks[at_text].escaped in frame
    around = _between_marks(frame, [mark.escaped if kept else mark.written for mark in marks], at_text)
    if around is None:
        return None
    client, order = around
    mixture = None
    if len(places) > 1 or order != [0]:
        mixture = _mixture(parts, at_text, client, order, kept)
        if mixture is None:
            return None
    before, behind = constants[0], constants[-1]
    return Template(
        before,
        behind,
        client[0],
        client[-1],
        slice(len(before), -len(behind)),
        behind + BETWEEN + before,
        client[-1] + client[0],
        marker[0],
        kept,
        chunk.choices[0].index,
        text[-1],
        mixture,
    )


def _mixture(parts: Cut, text: int, client: Sequence[bytes], order: Sequence[int], kept: bool) -> Mixture | None:
    """Return what is in the slot; None if the client would not get a value that it must get."""
    places = parts.places
    usage = places.index(USAGE) if USAGE in places else None
    shown = {at for at, place in enumerate(places) if place not in NAMES and at != usage}
    if not {text} <= shown == {*order} - {usage}:
        return None
    middles, client_middles = parts.constants[1:-1], tuple(client[1:-1])
    untouched = kept and usage is None and [*order] == [*range(len(places))] and client_middles == middles
    return Mixture(middles, text, client_middles, tuple(order), untouched, usage)


def _marked(parts: Cut, text: Place, marks: Sequence[_Mark]) -> bytes:
    """Return the chunk with marks in the places of its values."""
    pieces: list[bytes] = []
    for constant, place, mark in zip(parts.constants, parts.places, marks, strict=False):
        pieces += constant, mark.escaped if place == text else b'"%b"' % mark.escaped
    return b"".join((*pieces, parts.constants[-1]))


def _has_mark(frame: bytes, marks: Sequence[_Mark]) -> bool:
    return any(mark.escaped in frame or mark.written in frame for mark in marks)


def _differs_only_in(values: Values, marked: bytes, chunk: UpstreamChunk, dialect: Dialect) -> bool:
    """Whether the marked chunk is parsed to the other one with these values."""
    choice, top = with_values(chunk.choices[0], chunk.extra, values)
    try:
        return parse_chunk(marked, dialect) == UpstreamChunk((choice,), None, chunk.fingerprint, chunk.error, top)
    except MalformedChunk:
        return False


def _between_marks(frame: bytes, marks: Sequence[bytes], text: int) -> tuple[list[bytes], list[int]] | None:
    """Return the bytes around the marks in the client's frames, and the marks' numbers in their order.

    Those of JSON must have quotes around them, which belong to the value.
    """
    if len(marks) == 1:
        pieces = frame.split(marks[0])
        return pieces, [0] * (len(pieces) - 1)
    found = re.split(b"(" + b"|".join(map(re.escape, marks)) + b")", frame)
    pieces, order = found[::2], [marks.index(mark) for mark in found[1::2]]
    for at, number in enumerate(order):
        if number != text:
            if not (pieces[at].endswith(b'"') and pieces[at + 1].startswith(b'"')):
                return None
            pieces[at], pieces[at + 1] = pieces[at][:-1], pieces[at + 1][1:]
    return pieces, order
