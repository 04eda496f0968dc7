"""A request's JSON body: parsed once, kept exact, and spliced into the bodies of upstream calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import orjson

from nproxy.openai.errors import ApiError, invalid_request
from nproxy.openai.frozen import frozen
from nproxy.openai.jsonvalue import (
    BACKSLASH,
    EXACT,
    JSON,
    dumps,
    dumps_within,
    has_lone_surrogate,
    nested_deeper,
    outside_few_strings,
    outside_strings,
    patient_value_at,
    value_at,
    without_escaped_quotes,
)

LONG = 256 << 10
"""Bytes from which on a body is parsed in a thread: what takes no time in a small one adds up."""

_LONGEST_OF_NUMBERS = 1 << 20

MOST_CONTAINERS = 1 << 16
MOST_STRINGS = 1 << 18
MOST_VALUES = 1_500_000
"""Limits of one body: arrays and objects; strings, keys included; commas. They cost a parser time and memory, 50 times
the body's size for empty arrays. A prompt of a million token ids and a chat of 15,000 messages are below the limits."""
MOST_LEVELS = 64
"""How deep arrays and objects of one body may be nested, the body itself included."""

_FEW_STRINGS = 256
"""A long body with no more strings has images, or long texts."""

_NEVER_TOO_MUCH = min(MOST_CONTAINERS, MOST_STRINGS, MOST_VALUES)
"""Bytes that cannot hold more of anything."""

_SPACE = re.compile(r"[ \t\n\r]*+")
_BLANKS = frozenset(" \t\n\r")
_KEY = r'[ \t\n\r]*+"([^"\\\x00-\x1f]{0,64}+)"[ \t\n\r]*+:[ \t\n\r]*+'  # a usual key: short, no escapes
_FIRST_KEY, _NEXT_KEY = re.compile(r"[ \t\n\r]*+\{" + _KEY), re.compile("[ \t\n\r]*+," + _KEY)


@frozen
class Encoded:
    """A JSON value as bytes, in parts to be written one after the other. Calls share those that `Body.once` returns."""

    parts: tuple[bytes, ...]


Values: TypeAlias = "dict[str, JSON | Encoded]"
"""Values to be spliced into a body, by key."""


@frozen
class Spliced:
    """The body of an upstream call, in parts to be written one after the other.

    All calls that touch the same keys share the first part, and all calls the parts of `Encoded` values.
    """

    parts: tuple[bytes, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


@dataclass(slots=True, repr=False, eq=False)
class Body:
    """A JSON object as a client sent it.

    raw: the exact bytes, unless a key was repeated at the root; then only its last value is in them. fields: the parsed
    values by key. Neither the mapping nor the values may be changed.
    """

    raw: bytes
    fields: Mapping[str, JSON]
    _spans: Mapping[str, tuple[int, int]] | None = None  # key -> where `"key": value` is in raw; None: `_as_written`
    _heads: dict[frozenset[str], bytes] = field(default_factory=dict)
    _encoded: dict[Hashable, bytes] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Body({len(self.raw)} bytes)"  # what a client wrote must not get into logs

    @classmethod
    def parse(cls, raw: bytes) -> Body:
        """Parse a UTF-8 JSON object.

        Raises ApiError 400 with param null for: not UTF-8, not JSON (which excludes NaN, Infinity and numbers beyond a
        double), not an object, more parts or levels than MOST_..., lone surrogates, integers of thousands of digits.
        In a thread, no step of it blocks the other threads for long.
        """
        if (written := _as_written(raw)) is not None:
            return cls(raw, written)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise _refused("it is not valid UTF-8") from None
        _refuse_too_much(raw)
        try:
            fields, members, repeated = _scan(text)
        except json.JSONDecodeError as error:
            raise _refused(f"{error.msg} (character {error.pos})") from None
        except (ValueError, RecursionError):  # NaN, 1e999, an integer of thousands of digits
            raise _refused("it contains a number that is too large, NaN or Infinity") from None
        if BACKSLASH in raw and (raw.rfind(b"\\ud") >= 0 or raw.rfind(b"\\uD") >= 0):  # `in` takes twice as long
            _refuse_lone_surrogates(without_escaped_quotes(raw))
        spans = _byte_spans(text, members)
        if repeated:
            raw, spans = _once(raw, spans)
        return cls(raw, fields, spans)

    def once(self, key: Hashable, value: Callable[[], JSON], open: int = 0) -> bytes:
        """Return the JSON of a value that several calls send. The value is made and encoded once for each key.

        open: so many closing characters are left out, as the caller adds something to a text, a list or an object.
        """
        encoded = self._encoded.get(key)
        if encoded is None:
            written = dumps(value())
            encoded = self._encoded[key] = written[: len(written) - open]
        return encoded

    def splice(self, set: Values, drop: Collection[str] = ()) -> Spliced:
        """Return the body with the fields of `set` in place of its own and without those named in `drop`.

        Untouched values keep their exact bytes. The head is built once for each set of touched keys. Values of `set`
        are encoded for each call; long ones should be `Encoded`.
        """
        touched = frozenset(self.fields.keys() & {*set, *drop})
        if not set and not touched:
            return Spliced((self.raw,))
        head = self._heads.get(touched)
        if head is None:
            head = self._heads[touched] = self._without(touched)
        if not set:
            return Spliced((head, b"}"))
        comma = b"," if len(touched) < len(self.fields) else b""
        for value in set.values():
            if type(value) is Encoded:
                return Spliced((head, *_members(set, comma), b"}"))
        return Spliced((head, comma + dumps(set)[1:]))

    def _without(self, touched: Collection[str]) -> bytes:
        """Return the object with all members but these, and without the closing brace."""
        if self.fields and not touched:
            return self.raw[: self.raw.rindex(b"}")]
        if self._spans is None:
            return dumps({key: value for key, value in self.fields.items() if key not in touched})[:-1]
        kept = [self.raw[start:end] for key, (start, end) in self._spans.items() if key not in touched]
        return b"{" + b",".join(kept)


def _members(set: Values, comma: bytes) -> Iterator[bytes]:
    """Yield the members of an object; comma: before the first one."""
    for key, value in set.items():
        yield comma + dumps(key) + b":"
        if isinstance(value, Encoded):
            yield from value.parts
        else:
            yield dumps(value)
        comma = b","


def _refused(why: str) -> ApiError:
    return invalid_request(f"The request body cannot be read as a JSON object: {why}.")


def _as_written(raw: bytes) -> dict[str, JSON] | None:
    """Return the values of a body that is byte for byte what `dumps` would write; None if it must be read with care.

    Most clients' libraries write so. Then no key is repeated, no number is rounded, no surrogate is alone, and its
    members can be written again without changing them. Not for long bodies, unless they are token ids: other threads
    would have to wait, and each string that is not ASCII keeps what was written of it.
    """
    colon = raw.find(b":")
    if raw[colon + 1 : colon + 2] == b" " or (len(raw) >= LONG and not _is_of_numbers(raw)):
        return None  # the former is how the standard library's `json` writes
    containers = raw.count(b"[") + raw.count(b"{")  # at most: some may be in strings
    if containers > MOST_CONTAINERS:
        return None
    try:
        value = orjson.loads(raw)
        written = orjson.dumps(value) if containers <= MOST_LEVELS else dumps_within(value, MOST_LEVELS)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None
    return value if type(value) is dict and written == raw else None


def _is_of_numbers(raw: bytes) -> bool:
    """Whether a long body is of short numbers, and not so long that other threads would wait more than 10 ms for it.

    Otherwise, they are read one by one in a thread, which takes six times as long.
    """
    return len(raw) < _LONGEST_OF_NUMBERS and raw.count(b",") * 12 > len(raw) and raw.count(b'"') < 1000


def _refuse_too_much(raw: bytes) -> None:
    """Raise ApiError for what would occupy a parser for long.

    Cheap, and right for valid JSON; the parser stops at the error in any other.
    """
    if len(raw) <= _NEVER_TOO_MUCH and raw.count(b"[") + raw.count(b"{") <= MOST_LEVELS:
        return  # most bodies are too small for any of it
    unescaped = without_escaped_quotes(raw)
    outside = outside_few_strings(unescaped, _FEW_STRINGS) if len(raw) >= LONG else None
    if outside is None:
        if unescaped.count(b'"') > 2 * MOST_STRINGS:
            raise _refused(f"it contains more than {MOST_STRINGS} strings")
        outside = outside_strings(unescaped)
    if outside.count(b"[") + outside.count(b"{") > MOST_CONTAINERS:
        raise _refused(f"it contains more than {MOST_CONTAINERS} arrays and objects")
    if outside.count(b",") > MOST_VALUES:
        raise _refused(f"it contains more than {MOST_VALUES} values")
    if nested_deeper(outside, MOST_LEVELS):
        raise _refused(f"it is nested more than {MOST_LEVELS} levels deep")


def _scan(text: str) -> tuple[dict[str, JSON], dict[str, tuple[int, int]], bool]:
    """Read an object's members: values by key, the span of each member in the text, and whether a key was repeated.

    Raises json.JSONDecodeError if the text is not one JSON object, and ValueError for invalid numbers.
    """
    decode = value_at if len(text) < LONG else patient_value_at
    fields: dict[str, JSON] = {}
    members: dict[str, tuple[int, int]] = {}
    repeated = False
    usual = _FIRST_KEY.match(text)
    at, more = (0, True) if usual is not None else _open(text)
    while more:
        start, key, at = _key(text, at) if usual is None else (usual.start(1) - 1, usual[1], usual.end())
        try:
            value, at = decode(text, at)
        except StopIteration as stopped:  # the scanner's way to report that
            raise json.JSONDecodeError("expected a value", text, stopped.value) from None
        if key in members:
            repeated = True
            del members[key]  # it is placed where its last value is
        fields[key] = value
        members[key] = start, at
        if (usual := _NEXT_KEY.match(text, at)) is None:
            at, more = _more(text, at)
    at = _skip(text, at)
    if at != len(text):
        raise json.JSONDecodeError("unexpected data after the object", text, at)
    return fields, members, repeated


def _open(text: str) -> tuple[int, bool]:
    """Enter an object. Returns where to look for its first key, and True; or its end, and False if it is empty."""
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise json.JSONDecodeError("expected an object", text, at)
    end = _skip(text, at + 1)
    return (end + 1, False) if text[end : end + 1] == "}" else (at + 1, True)


def _more(text: str, at: int) -> tuple[int, bool]:
    """Go on after a member. Returns where to look for the next key, and True; or the object's end, and False."""
    at = _skip(text, at)
    mark = text[at : at + 1]
    if mark not in (",", "}"):
        raise json.JSONDecodeError("expected a comma or the end of the object", text, at)
    return at + 1, mark == ","


def _key(text: str, at: int) -> tuple[int, str, int]:
    """Read any key. Returns where it begins, the key, and where its value begins. Raises json.JSONDecodeError."""
    start = _skip(text, at)
    if text[start : start + 1] != '"':
        raise json.JSONDecodeError("expected a key in double quotes", text, start)
    key, at = EXACT.raw_decode(text, start)
    at = _skip(text, at)
    if text[at : at + 1] != ":":
        raise json.JSONDecodeError("expected a colon", text, at)
    return start, key, _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    if text[at : at + 1] not in _BLANKS:
        return at
    space = _SPACE.match(text, at + 1)
    return at if space is None else space.end()


def _refuse_lone_surrogates(unescaped: bytes, step: int = LONG) -> None:
    """Raise ApiError for an escaped surrogate without its other half: UTF-8 cannot carry it to an upstream."""
    if has_lone_surrogate(unescaped, step):
        raise _refused("it contains half of a surrogate pair")


def _byte_spans(text: str, members: Mapping[str, tuple[int, int]]) -> Mapping[str, tuple[int, int]]:
    """Turn positions in the text into positions in its UTF-8 bytes. Members are in the text's order."""
    if text.isascii():
        return members
    spans: dict[str, tuple[int, int]] = {}
    chars = octets = 0
    for key, (start, end) in members.items():
        octets += len(text[chars:start].encode("utf-8"))
        length = len(text[start:end].encode("utf-8"))
        spans[key] = octets, octets + length
        chars, octets = end, octets + length
    return spans


def _once(raw: bytes, members: Mapping[str, tuple[int, int]]) -> tuple[bytes, Mapping[str, tuple[int, int]]]:
    """Write the object anew with every key once, so that what was checked is what is sent."""
    pieces: list[bytes] = []
    spans: dict[str, tuple[int, int]] = {}
    at = 1  # behind the brace
    for key, (start, end) in members.items():
        pieces.append(raw[start:end])
        spans[key] = at, at + end - start
        at += end - start + 1  # and the comma
    return b"{" + b",".join(pieces) + b"}", spans
