"""Byte rewriting: turns usual chunks of a stream into the client's without parsing them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from nproxy.openai.chunks import MalformedChunk, UpstreamChunk, parse_chunk
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import loads
from nproxy.openai.sse import BETWEEN
from nproxy.openai.tools import place_of_arguments

# What may be inside a JSON string so that parsing and writing would return the same bytes: the writer
# leaves other printable characters unescaped, so a `\/` or `\u00e9` would come out as `/` or `é`.
_verbatim = re.compile(rb'[^"\\\x00-\x1f]*(?:\\["\\bfnrt][^"\\\x00-\x1f]*)*').fullmatch
_special = re.compile(rb'["\\\x00-\x1f]').search
_string_rest = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL).match

_SLOT = "\x7fslot\x7f"  # replaces the string while a template is made; its absence elsewhere is checked
_MOST_CHANNELS = 1024
_MOST_MARKERS = 4
_LONGEST_KEY = 64
"""Limits of what one leg may teach: memory, and the time of a search. Chunks beyond them take the slow path."""

Place = tuple[str, ...]
"""The keys that lead to a string of a delta: its own, or `("tool_calls", "function", "arguments")` of its one call."""

_Channel = tuple[int, Place]
"""A choice's upstream index, and the place of one of its strings."""

Render = Callable[[Place, str, bytes], bytes]
"""Writes the client's frame for a chunk with another text in one place. Takes the chunk's bytes with that text, too."""


class _Template(NamedTuple):
    """The bytes around the one string that differs between chunks: the upstream's, and the client's."""

    before: bytes
    behind: bytes
    client_before: bytes
    client_behind: bytes
    slot: slice
    """Where the string is in the upstream's chunk."""
    joint: bytes
    """What is between the strings of two events that follow each other."""
    client_joint: bytes
    """The same in the client's frames."""


class Rewriter:
    """Rewrites the usual chunks of one leg as bytes, without parsing them.

    Most chunks of a choice differ in one string only. From fully parsed chunks the rewriter learns the bytes before and
    behind that string, and what the client gets before and behind it. A later chunk with exactly the same surroundings,
    and a string that may be passed on unchanged, becomes the client's by swapping them.

    Its output equals what parsing and writing would give, byte for byte. One object per leg:

        frame = rewriter.swap(data)                       # bytes of the client's whole frame; or swap_all, for several
        if frame is None: chunk = parse_chunk(data, ...)  # the slow path; then, for a chunk that was written
            rewriter.learn(data, chunk, render)           # as one plain frame, teach it

    After a choice's finish call `forget(index)`, so that stray chunks take the slow path and are dropped; and after a
    chunk that says something new of a tool call, since the next ones may be mended otherwise.
    """

    __slots__ = ("_dialect", "_hopeless", "_latest", "_made", "_markers", "_seen", "_templates")

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._markers: list[bytes] = []  # what ends the bytes before the string, such as `"content":"`
        self._templates: dict[tuple[bytes, bytes], _Template] = {}  # by the bytes before and behind the string
        self._latest: _Template | None = None  # the one that matched last; the only one of a leg of one choice
        self._seen: dict[_Channel, tuple[bytes, bytes]] = {}  # the surroundings of the last parsed chunk
        self._made: dict[_Channel, tuple[bytes, bytes]] = {}  # the key of the template that was made
        self._hopeless: set[_Channel] = set()  # no template can be made

    def swap(self, data: bytes) -> bytes | None:
        """Return the client's frame, or None if this chunk must be parsed."""
        template = self._latest
        if template is None or data != template.before + (text := data[template.slot]) + template.behind:
            template = self._find_template(data)
            if template is None:
                return None
            self._latest = template
            text = data[template.slot]
        if (text and _special(text) is None and text.isascii()) or _as_it_is(text):
            return template.client_before + text + template.client_behind
        return None

    def swap_all(self, data: bytes) -> tuple[bytes, int, bytes]:
        """Swap several events, whose data is joined by `BETWEEN`, as far as one template matches from the front.

        Returns the frames of these, their number, and the events behind them. If the string of one of these must be
        parsed, no event is swapped.
        """
        texts, rest = self._in_front(data)
        template = self._latest
        if template is None or not texts:
            return b"", 0, data
        return template.client_before + template.client_joint.join(texts) + template.client_behind, len(texts), rest

    def _in_front(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the strings of the events that `swap_all` takes, and the events behind them."""
        template = self._latest
        if template is None or not data.startswith(template.before):
            self._latest = template = self._find_template(data.partition(BETWEEN)[0])
            if template is None:
                return [], data
        *texts, last = data[len(template.before) :].split(template.joint)
        text, found, rest = last.partition(template.behind + BETWEEN)
        if found or last.endswith(template.behind):
            texts.append(text if found else last[: -len(template.behind)])
        else:
            rest = template.before + last  # only its beginning matches
        together = b"".join(texts)
        plain = all(texts) and _special(together) is None and together.isascii()
        return (texts, rest) if plain or all(map(_as_it_is, texts)) else ([], data)

    def _find_template(self, data: bytes) -> _Template | None:
        for marker in self._markers:
            at = data.find(marker)
            if at >= 0 and (rest := _string_rest(data, at + len(marker))) is not None:
                around = data[: at + len(marker)], data[rest.end() - 1 :]
                if (template := self._templates.get(around)) is not None:
                    return template
        return None

    def learn(self, data: bytes, chunk: UpstreamChunk, render: Render) -> None:
        """Learn from a chunk that was just parsed from `data`.

        render: must depend on its arguments only. Chunks that are not plain text or arguments (usage, finish, log
        probabilities, several choices or calls) teach nothing, so this may be called for every chunk. A template is
        made when two chunks of a choice had the same surroundings.
        """
        place = _the_string(chunk)
        if place is None:
            return
        choice = chunk.choices[0]
        channel = (choice.index, place)
        if channel in self._hopeless or (len(self._seen) >= _MOST_CHANNELS and channel not in self._seen):
            return
        found = _find(data, place[-1], _string_in(choice.delta, place))
        if found is None:
            return
        start, end = found
        before, behind = data[:start], data[end:]
        if self._seen.get(channel) != (before, behind):
            self._seen[channel] = before, behind  # ids or times may change with every chunk: wait for a second one
        elif not self._make(channel, before, behind, chunk, render):
            self._hopeless.add(channel)

    def forget(self, index: int | None = None) -> None:
        """Drop what was learned for this upstream index, or everything, because what render would write has changed."""
        self._latest = None
        if not self._seen:
            return
        for channel in [channel for channel in self._seen if index in (None, channel[0])]:
            del self._seen[channel]
            self._hopeless.discard(channel)
            if (around := self._made.pop(channel, None)) is not None:
                self._templates.pop(around, None)

    def _make(
        self,
        channel: _Channel,
        before: bytes,
        behind: bytes,
        chunk: UpstreamChunk,
        render: Render,
    ) -> bool:
        """Make a template, and prove it: with another string in the slot nothing else of the chunk may change.

        Returns False if there can be none.
        """
        _, place = channel
        opening = _opening(place[-1]).search(before)
        marker = before[opening.start() :] if opening is not None else b""
        if opening is None or opening.end() != len(before):
            return False  # swap looks for the first opening, which must be this one
        slotted = replace(chunk.choices[0], delta=with_string(chunk.choices[0].delta, place, _SLOT))
        slot = _SLOT.encode()
        slotted_data = before + slot + behind
        try:
            alike = parse_chunk(slotted_data, self._dialect) == replace(chunk, choices=(slotted,))
        except MalformedChunk:
            return False
        frame = render(place, _SLOT, slotted_data).split(slot)
        if not alike or len(frame) != 2:
            return False
        if marker not in self._markers:
            if len(self._markers) >= _MOST_MARKERS:
                return False
            self._markers.append(marker)
        if (outdated := self._made.get(channel)) is not None:
            self._templates.pop(outdated, None)
        self._templates[before, behind] = _Template(
            before,
            behind,
            frame[0],
            frame[1],
            slice(len(before), -len(behind)),
            joint=behind + BETWEEN + before,
            client_joint=frame[1] + frame[0],
        )
        self._made[channel] = before, behind
        self._latest = None
        return True


class ListeningRewriter(Rewriter):
    """A rewriter that reports each string that it passes on: as it was in the upstream's JSON, without its quotes.

    listen: returns the callback that takes the strings of an upstream index and a key; always the same one. Strings of
    chunks that take the slow path, as all tool calls do, are not reported.
    """

    __slots__ = ("_heard", "_listen", "_listener", "_listeners")

    def __init__(self, dialect: Dialect, listen: Callable[[int, str], Callable[[bytes], None]]) -> None:
        super().__init__(dialect)
        self._listen = listen
        self._listeners: dict[tuple[bytes, bytes], Callable[[bytes], None]] = {}  # by the bytes around the string
        self._heard: _Template | None = None  # the one that matched last,
        self._listener: Callable[[bytes], None] | None = None  # and what takes its strings

    def swap(self, data: bytes) -> bytes | None:
        frame = Rewriter.swap(self, data)
        if frame is not None and (template := self._latest) is not None:
            self._tell(template, data[template.slot])
        return frame

    def _in_front(self, data: bytes) -> tuple[list[bytes], bytes]:
        texts, rest = super()._in_front(data)
        if texts and (template := self._latest) is not None:
            for text in texts:
                self._tell(template, text)
        return texts, rest

    def _tell(self, template: _Template, text: bytes) -> None:
        if template is not self._heard or self._listener is None:
            self._heard, self._listener = template, self._listeners[template[:2]]
        self._listener(text)

    def learn(self, data: bytes, chunk: UpstreamChunk, render: Render) -> None:
        beside = (value for choice in chunk.choices for value in (*choice.delta.values(), *choice.extra.values()))
        if not any(isinstance(value, list) and value for value in beside):
            super().learn(data, chunk, render)  # calls, and entries beside a text, must be seen each time

    def _make(
        self,
        channel: _Channel,
        before: bytes,
        behind: bytes,
        chunk: UpstreamChunk,
        render: Render,
    ) -> bool:
        made = super()._make(channel, before, behind, chunk, render)
        if made:
            made_of = self._made.items()
            self._listeners = {around: self._listen(index, place[0]) for (index, place), around in made_of}
        return made


def _the_string(chunk: UpstreamChunk) -> Place | None:
    """Return the place of the one string that such a chunk carries, None if it carries anything else of importance."""
    if len(chunk.choices) != 1 or chunk.usage is not None:
        return None
    choice = chunk.choices[0]
    if choice.finish_reason is not None or choice.logprobs is not None:
        return None
    full = [key for key, value in choice.delta.items() if value not in (None, "")]
    if len(full) != 1:
        return None
    if isinstance(choice.delta[full[0]], str):
        return (full[0],) if len(full[0]) <= _LONGEST_KEY else None
    return place_of_arguments(choice.delta)


def _string_in(said: Any, place: Place) -> Any:
    for key in place:
        said = said[key]
        if isinstance(said, list):
            (said,) = said
    return said


def with_string(said: Mapping[str, Any], place: Place, text: str) -> dict[str, Any]:
    """Return what was said, a delta or a part of it, with another string at a place."""
    key, *inner = place
    if not inner:
        return {**said, key: text}
    within = said[key]
    if isinstance(within, list):
        (one,) = within
        return {**said, key: [with_string(one, tuple(inner), text)]}
    return {**said, key: with_string(within, tuple(inner), text)}


@lru_cache(maxsize=16)
def _opening(key: str) -> re.Pattern[bytes]:
    """Return a pattern that matches a member's key and what leads to its string value."""
    return re.compile(rb'"%b"[ \t\r\n]*:[ \t\r\n]*"' % re.escape(key.encode("utf-8", "replace")))


def _find(data: bytes, key: str, value: object) -> tuple[int, int] | None:
    """Return where the member's string begins and ends, between its quotes; None if it is not found."""
    opening = _opening(key).search(data)
    rest = _string_rest(data, opening.end()) if opening is not None else None
    if opening is None or rest is None:
        return None
    start, end = opening.end(), rest.end() - 1
    try:
        same = loads(data[start - 1 : end + 1]) == value
    except ValueError:
        return None
    return (start, end) if same else None


def _as_it_is(text: bytes) -> bool:
    """Whether a string's bytes can be passed on, because parsing and writing them would give the same bytes."""
    if not text or (_special(text) is not None and _verbatim(text) is None):
        return False
    return text.isascii() or _is_utf8(text)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
