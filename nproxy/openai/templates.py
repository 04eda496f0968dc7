"""Templates: the bytes around the few values that differ between the chunks of a choice, upstream's and client's.

A template is made from two chunks that are alike but for a text, and for values that nothing depends on: log
probabilities, token ids, a padding. It is proved with marks in their places, and then turns chunks into frames without
parsing them. The text comes out as if the chunk had been parsed and written; other values as they came.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any, NamedTuple

import orjson

from nproxy.openai.chunks import MalformedChunk, UpstreamChoice, UpstreamChunk, parse_chunk
from nproxy.openai.dialect import CHAT, Dialect
from nproxy.openai.frozen import frozen
from nproxy.openai.jsonvalue import EXACT, JSON, loads
from nproxy.openai.sse import BETWEEN
from nproxy.openai.unread import can_pass_unread

Place = tuple[str, ...]
"""The keys that lead to a value of a chunk with one choice: `("choices", "delta", "content")`, `("choices",
"logprobs")`, `("obfuscation",)`. Lists on the way have one entry."""

NAMES: tuple[Place, ...] = (("id",), ("created",))
"""Names of a chunk, which the client does not get: it gets those of its own answer."""

USAGE: Place = ("usage",)
"""What a chunk reports of the tokens so far. It is counted, and the client gets a total of its own, or none."""

Count = Callable[[int, bytes], bytes | None]
"""Counts a usage that came with a choice of this upstream index. Returns the usage that the client gets instead; None
if the chunk must be parsed."""

Values = Mapping[Place, JSON]

Render = Callable[[Values, bytes], bytes]
"""Writes the client's frames for a chunk with other values in some places. Takes the chunk's bytes with these, too."""

# What may be inside a JSON string so that parsing and writing would return the same bytes: the writer
# leaves other printable characters unescaped, so a `\/` or `\u00e9` would come out as `/` or `é`.
_verbatim = re.compile(rb'[^"\\\x00-\x1f]*(?:\\["\\bfnrt][^"\\\x00-\x1f]*)*').fullmatch
_valid = re.compile(rb'[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*').fullmatch
special = re.compile(rb'["\\\x00-\x1f]').search
"""Finds what is not simply itself in a JSON string."""
string_rest = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL).match
"""Matches the rest of a string, with its quote."""

_MOST_VALUES = 6
_MOST_ALIKE = 4  # members with the same key
_NEW_LINE, _RETURN = b"\n\r"
_DECIDING = frozenset({"message", "usage", "error", "delta", "content", "role", "tool_calls", "function_call"})
"""Members of a choice, and of a delta, by whose values something is decided, so that they must be parsed."""


class Cut(NamedTuple):
    """A chunk cut at its values: one piece of bytes more than there are values."""

    constants: tuple[bytes, ...]
    places: tuple[Place, ...]
    """In the order in which their values stand in the chunk."""


@frozen
class Template:
    """The bytes around the values that differ between chunks: the upstream's, and the client's."""

    before: bytes
    behind: bytes
    client_before: bytes
    client_behind: bytes
    slot: slice
    """What is between `before` and `behind` in the upstream's chunk."""
    joint: bytes
    """What is between the slots of two events that follow each other."""
    client_joint: bytes
    """The same in the client's frames."""
    marker: bytes
    """The end of `before`: the key of the first value."""
    kept: bool
    """The client gets the text as it came; otherwise as it is written after parsing."""
    middles: tuple[bytes, ...]
    """What is between the values in the slot; empty if it is a text."""
    text: int
    """Which of the values is the text; all others are JSON."""
    client_middles: tuple[bytes, ...]
    """What is between the values in the client's frame,"""
    order: tuple[int, ...]
    """and which values these are. Names are not among them."""
    alone: bool
    """There is only a text, and the client gets it once."""
    untouched: bool
    """The client gets all that is in the slot as it came."""
    usage: int | None
    """Which of the values is a usage."""
    index: int
    """The choice's upstream index,"""
    key: str
    """and the key of its text."""

    def fits(self, data: bytes) -> bool:
        """Whether the template is made for such a chunk, whatever its values are."""
        if not (data.startswith(self.before) and data.endswith(self.behind)):
            return False
        return not self.middles or len(self._values(data[self.slot])) == len(self.middles) + 1

    def text_of(self, between: bytes) -> bytes:
        """Return the text in a slot: as it is in JSON, without its quotes."""
        return self._values(between)[self.text]

    def said(self, between: bytes, count: Count) -> bytes | None:
        """Return what the client gets for what is in the slot; None if that must be parsed."""
        values = self._values(between)
        if len(values) <= len(self.middles) or _NEW_LINE in between or _RETURN in between:  # a frame is one line
            return None
        for at, value in enumerate(values):
            if at != self.text:
                if not can_pass_unread(value):
                    return None
            elif (said := text_said(value, self.kept)) is not None:
                values[at] = said
            else:
                return None
        if self.usage is not None:
            counted = count(self.index, values[self.usage])
            if counted is None:
                return None
            values[self.usage] = counted
        if self.untouched:
            return between
        first, *others = self.order
        parts = [values[first]]
        for middle, at in zip(self.client_middles, others, strict=True):
            parts += middle, values[at]
        return b"".join(parts)

    def _values(self, between: bytes) -> list[bytes]:
        """Return the values in a slot. There are too few if it does not fit."""
        values, rest = [], between
        for middle in self.middles:  # a text cannot contain one: each has quotes that are not escaped
            value, found, rest = rest.partition(middle)
            if not found:
                return []
            values.append(value)
        values.append(rest)
        return values


def text_said(text: bytes, kept: bool) -> bytes | None:
    """Return the inside of a string as the client gets it. None for an empty one, and if it must be parsed."""
    if not text:
        return None
    if (_valid(text) if kept else _verbatim(text)) is not None:
        return text if text.isascii() or _is_utf8(text) else None
    if kept:
        return None
    try:
        return orjson.dumps(orjson.loads(b'"%b"' % text))[1:-1]
    except ValueError:  # also for half a surrogate pair
        return None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


# ---- places


may_be_changed = re.compile(r"[\w.-]{1,64}", re.ASCII).fullmatch
"""Matches the keys of values that may differ between chunks; others might be found inside strings."""


def _value_in(said: Any, place: Place) -> Any:
    """Return the value in a place of a parsed chunk. Raises LookupError, TypeError or ValueError if there is none."""
    for key in place:
        said = said[key]
        if isinstance(said, list) and key in ("choices", "tool_calls"):
            (said,) = said
    return said


def with_value(said: Mapping[str, Any], place: Place, value: JSON) -> dict[str, Any]:
    """Return what was said, a parsed chunk or a part of it, with another value in a place."""
    key, *inner = place
    if not inner:
        return {**said, key: value}
    within = said[key]
    if isinstance(within, list):
        (one,) = within
        return {**said, key: [with_value(one, tuple(inner), value)]}
    return {**said, key: with_value(within, tuple(inner), value)}


def with_values(
    choice: UpstreamChoice, top: Mapping[str, JSON], values: Values
) -> tuple[UpstreamChoice, Mapping[str, JSON]]:
    """Return a chunk's one choice, and what is beside the choices, with other values in some places."""
    delta, logprobs, extra = choice.delta, choice.logprobs, choice.extra
    for place, value in values.items():
        match place:
            case ("choices", "delta", *inner):
                delta = with_value(delta, tuple(inner), value)
            case ("choices", "logprobs"):
                logprobs = value
            case ("choices", key) if key in extra:
                extra = {**extra, key: value}
            case ("choices", "text"):  # of a legacy completion
                delta = {**delta, "text": value}
            case (key,) if place not in NAMES and place != USAGE:
                top = {**top, key: value}
    return replace(choice, delta=delta, logprobs=logprobs, extra=extra), top


def changing(chunk: UpstreamChunk, other: UpstreamChunk, dialect: Dialect) -> list[Place]:
    """Return the places of values which nothing depends on and which differ between two chunks of a choice.

    A usage is one, too. A name that only one of the chunks has is then not found in the other.
    """
    (choice,), (another,) = chunk.choices, other.choices
    came, before = chunk.came, other.came
    found = [place for place in NAMES if came.get(place[0]) != before.get(place[0])]
    if chunk.usage is not None and other.usage is not None:
        found.append(USAGE)  # each is counted, also if it is the same
    if choice.logprobs != another.logprobs and choice.logprobs is not None and another.logprobs is not None:
        found.append(("choices", "logprobs"))
    found += [("choices", key) for key in _differing(choice.extra, another.extra)]
    if dialect is CHAT:
        found += [("choices", "delta", key) for key in _differing(choice.delta, another.delta)]
    found += [(key,) for key in _differing(chunk.extra, other.extra)]
    return found


def _differing(some: Mapping[str, JSON], others: Mapping[str, JSON]) -> list[str]:
    return [key for key, value in some.items() if key not in _DECIDING and key in others and others[key] != value]


# ---- making


def cut(data: bytes, chunk: UpstreamChunk, text: Place, others: Sequence[Place]) -> Cut | None:
    """Cut a chunk at its text and at other values; None if one of them is not found."""
    spans = []
    for place in (text, *others):
        try:
            value = _value_in(chunk.came, place)
        except (LookupError, TypeError, ValueError):
            return None
        span = _find_text(data, place[-1], value) if place == text else _find_value(data, place[-1], value)
        if span is None:
            return None
        spans.append((*span, place))
    spans.sort()
    if any(start < end for (_, end, _), (start, _, _) in pairwise(spans)):
        return None
    edges = [0, *(edge for start, end, _ in spans for edge in (start, end)), len(data)]
    constants = tuple(data[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))
    return Cut(constants, tuple(place for _, _, place in spans))


def make(
    parts: Cut, text: Place, chunk: UpstreamChunk, data: bytes, dialect: Dialect, render: Render
) -> Template | None:
    """Make a template of a chunk, and prove it: with other values in the places nothing else of it may change.

    Returns None if there can be none.
    """
    constants, places = parts
    if len(places) > _MOST_VALUES or not _is_first(constants[0], places[0], text):
        return None
    marks = [_mark(at) for at in range(len(places))]
    own = render({}, data)
    if any(mark.escaped in own or mark.written in own for mark in marks):
        return None
    values = {place: mark.value for place, mark in zip(places, marks, strict=True)}
    marked = _marked(parts, text, marks)
    if not _differs_only_in(marked, chunk, values, dialect):
        return None
    frame = render(values, marked)
    at_text, kept = places.index(text), marks[places.index(text)].escaped in frame
    around = _between_marks(frame, [mark.escaped if kept else mark.written for mark in marks], at_text)
    if around is None:
        return None
    client, order = around
    usage = places.index(USAGE) if USAGE in places else None
    if {*order, usage} - {None} != {at for at, place in enumerate(places) if place not in NAMES}:
        return None
    before, *middles, behind = constants
    client_before, *client_middles, client_behind = client
    return Template(
        before=before,
        behind=behind,
        client_before=client_before,
        client_behind=client_behind,
        slot=slice(len(before), -len(behind)),
        joint=behind + BETWEEN + before,
        client_joint=client_behind + client_before,
        marker=_leading_to(places[0], text).search(before)[0],  # type: ignore[index]
        kept=kept,
        middles=tuple(middles),
        text=at_text,
        client_middles=tuple(client_middles),
        order=tuple(order),
        alone=len(places) == 1 and order == [0],
        untouched=kept and usage is None and order == [*range(len(places))] and client_middles == middles,
        usage=usage,
        index=chunk.choices[0].index,
        key=text[-1],
    )


def _is_first(before: bytes, place: Place, text: Place) -> bool:
    """Whether what leads to a value stands first where the value begins: that is where it is looked for."""
    found = _leading_to(place, text).search(before)
    return found is not None and found.end() == len(before)


def _leading_to(place: Place, text: Place) -> re.Pattern[bytes]:
    return _opening(place[-1]) if place == text else _beginning(place[-1])


def _marked(parts: Cut, text: Place, marks: Sequence[_Mark]) -> bytes:
    """Return the chunk with marks in the places of its values."""
    pieces: list[bytes] = []
    for constant, place, mark in zip(parts.constants, parts.places, marks, strict=False):
        pieces += constant, mark.escaped if place == text else b'"%b"' % mark.escaped
    return b"".join((*pieces, parts.constants[-1]))


def _differs_only_in(marked: bytes, chunk: UpstreamChunk, values: Values, dialect: Dialect) -> bool:
    choice, top = with_values(chunk.choices[0], chunk.extra, values)
    try:
        return parse_chunk(marked, dialect) == replace(chunk, choices=(choice,), usage=None, extra=top)
    except MalformedChunk:
        return False


class _Mark(NamedTuple):
    """What stands for a value while a template is made. What has it already makes none."""

    value: str
    escaped: bytes
    """As the upstream writes it. Only what is kept as it came is still written so for the client."""
    written: bytes
    """As it is written after parsing."""


@lru_cache(maxsize=_MOST_VALUES)
def _mark(at: int) -> _Mark:
    return _Mark(f"\x7fslot{at}\x7f", b"\\u007fslot%d\\u007f" % at, b"\x7fslot%d\x7f" % at)


def _between_marks(frame: bytes, marks: Sequence[bytes], text: int) -> tuple[list[bytes], list[int]] | None:
    """Return the bytes around the marks in the client's frames, and the marks' numbers in their order.

    Those of JSON must have quotes around them, which belong to the value.
    """
    found = re.split(b"(" + b"|".join(map(re.escape, marks)) + b")", frame)
    pieces, order = found[::2], [marks.index(mark) for mark in found[1::2]]
    for at, number in enumerate(order):
        if number != text:
            if not (pieces[at].endswith(b'"') and pieces[at + 1].startswith(b'"')):
                return None
            pieces[at], pieces[at + 1] = pieces[at][:-1], pieces[at + 1][1:]
    return pieces, order


@lru_cache(maxsize=64)
def _beginning(key: str) -> re.Pattern[bytes]:
    """Return a pattern that matches a member's key and what leads to its value."""
    return re.compile(rb'"%b"[ \t\r\n]*:[ \t\r\n]*' % re.escape(key.encode("utf-8", "replace")))


@lru_cache(maxsize=16)
def _opening(key: str) -> re.Pattern[bytes]:
    """Return a pattern that matches a member's key and what leads to its string value."""
    return re.compile(_beginning(key).pattern + b'"')


def _find_text(data: bytes, key: str, value: object) -> tuple[int, int] | None:
    """Return where the member's string begins and ends, between its quotes; None if it is not found."""
    opening = _opening(key).search(data)
    rest = string_rest(data, opening.end()) if opening is not None else None
    if opening is None or rest is None:
        return None
    start, end = opening.end(), rest.end() - 1
    try:
        same = loads(data[start - 1 : end + 1]) == value
    except ValueError:
        return None
    return (start, end) if same else None


def _find_value(data: bytes, key: str, value: object) -> tuple[int, int] | None:
    """Return where the member's value begins and ends; None if no member with this key has it."""
    for beginning in islice(_beginning(key).finditer(data), _MOST_ALIKE):
        start = beginning.end()
        try:
            text = data[start:].decode()
            found, end = EXACT.raw_decode(text)
        except (ValueError, RecursionError):
            return None
        if found == value:
            return start, start + len(text[:end].encode())
    return None
