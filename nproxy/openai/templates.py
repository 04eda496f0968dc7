"""Templates: the bytes around the few values that differ between the chunks of a choice, upstream's and client's.

A template is made of two chunks that are alike but for a text, and for values that nothing depends on: log
probabilities, token ids, a padding. It turns further chunks into frames without parsing them. The text comes out as if
the chunk had been parsed and written; other values as they came.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import orjson

from nproxy.openai.frozen import frozen
from nproxy.openai.jsonvalue import is_utf8
from nproxy.openai.unread import can_pass_unread

Count = Callable[[int, bytes], bytes | None]
"""Counts a usage that came with a choice of this upstream index. Returns the usage that the client gets instead; None
if the chunk must be parsed."""

# What may be inside a JSON string so that parsing and writing would return the same bytes: the writer
# leaves other printable characters unescaped, so a `\/` or `\u00e9` would come out as `/` or `é`.
_verbatim = re.compile(rb'[^"\\\x00-\x1f]*(?:\\["\\bfnrt][^"\\\x00-\x1f]*)*').fullmatch
_valid = re.compile(rb'[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*').fullmatch
special = re.compile(rb'["\\\x00-\x1f]').search
"""Finds what is not simply itself in a JSON string."""

_NEW_LINE, _RETURN = b"\n\r"


@frozen
class Template:
    """The bytes around what differs between chunks: the upstream's, and the client's."""

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
    index: int
    """The choice's upstream index,"""
    key: str
    """and the key of its text."""
    mixture: Mixture | None
    """What is in the slot, if it is more than a text that the client gets once."""

    @property
    def mixed(self) -> bool:
        """Whether there is more than a text in the slot."""
        return self.mixture is not None and bool(self.mixture.middles)

    @property
    def has_usage(self) -> bool:
        """Whether there is a usage in the slot, which must be counted."""
        return self.mixture is not None and self.mixture.usage is not None

    def fits(self, data: bytes) -> bool:
        """Whether the template is made for such a chunk, whatever its values are."""
        if not (data.startswith(self.before) and data.endswith(self.behind)):
            return False
        return self.mixture is None or self.mixture.fits(data[self.slot])

    def text_of(self, between: bytes) -> bytes:
        """Return the text in a slot: as it is in JSON, without its quotes."""
        return between if self.mixture is None else self.mixture.text_of(between)

    def said(self, between: bytes, count: Count | None = None) -> bytes | None:
        """Return what the client gets for what is in the slot; None if that must be parsed, or counted by `count`."""
        if self.mixture is None:
            return text_said(between, self.kept)
        return self.mixture.said(between, self.kept, self.index, count)


@frozen
class Mixture:
    """A text in a slot, and the other values there."""

    middles: tuple[bytes, ...]
    """What is between the values; empty if there is only the text."""
    text: int
    """Which of the values is the text; all others are JSON."""
    client_middles: tuple[bytes, ...]
    """What is between the values in the client's frame,"""
    order: tuple[int, ...]
    """and which values these are. Names are not among them."""
    untouched: bool
    """The client gets all of it as it came."""
    usage: int | None
    """Which of the values is a usage."""

    def fits(self, between: bytes) -> bool:
        """Whether there are as many values as there should be."""
        return bool(self._values(between))

    def text_of(self, between: bytes) -> bytes:
        """Return the text. The slot must fit."""
        return self._values(between)[self.text]

    def said(self, between: bytes, kept: bool, index: int, count: Count | None) -> bytes | None:
        """Return what the client gets; None if that must be parsed, or counted. kept, index: the template's."""
        values = self._values(between)
        if not values or _NEW_LINE in between or _RETURN in between:  # a frame is one line
            return None
        for at, value in enumerate(values):
            if at != self.text:
                if not can_pass_unread(value):
                    return None
            elif (said := text_said(value, kept)) is not None:
                values[at] = said
            else:
                return None
        if self.usage is not None:
            counted = None if count is None else count(index, values[self.usage])
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
        """Return the values; none if they do not fit."""
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
        return text if is_utf8(text) else None
    if kept:
        return None
    try:
        return orjson.dumps(orjson.loads(b'"%b"' % text))[1:-1]
    except ValueError:  # also for half a surrogate pair
        return None
