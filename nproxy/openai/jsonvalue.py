"""JSON as values: exact loading of what upstreams send, compact and safe writing of what clients read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from itertools import accumulate
from operator import sub
from typing import Any, NoReturn, TypeAlias

import orjson

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

MAX_DEPTH = 254
"""Deepest nesting accepted from an upstream: the fast writer writes no deeper. The other one stops near 1,000."""

_ONE_DIGIT = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
_LONG_INTEGER = re.compile(rb"(?<![.0])" + _LONG_NUMBER)

BACKSLASH, _QUOTE, _POINT = b'\\".'  # numbers, for which bytes are searched ten times as fast
_LONE = re.compile("[\ud800-\udfff]")
_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE_ESCAPE = re.compile(rb"%b(?!%b)|(?<!%b)%b" % (_HIGH, _LOW, _HIGH, _LOW))

_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OPENINGS, _CLOSINGS = bytes.maketrans(b"[]", b"\1\0"), bytes.maketrans(b"[]", b"\0\1")
_NOT_SHAPE = bytes(set(range(256)) - set(b'"[]{}'))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


EXACT = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
"""The standard library's decoder, made to refuse NaN, Infinity and numbers that overflow to infinity."""

PATIENT = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, parse_int=lambda digits: int(digits))
"""The same for long documents in a thread: it calls Python for every number, so that other threads get their turn.
Otherwise a million integers would block them for 60 ms."""

ValueAt = Callable[[str, int], tuple[Any, int]]
"""Reads the value at a position in a text; returns it and where it ends. Raises StopIteration with the position if
there is none. This is what a decoder's `raw_decode` calls; for a short value, it takes a third of its time."""

value_at: ValueAt = EXACT.scan_once  # type: ignore[attr-defined]  # as old as `json`, but in no stub
patient_value_at: ValueAt = PATIENT.scan_once  # type: ignore[attr-defined]

_CONSTANTS = {
    "NaN": None,
    "Infinity": None,
    "-Infinity": -9999.0,
}  # the last is OpenAI's value for what is next to impossible
_FOREIGN = json.JSONDecoder(parse_constant=_CONSTANTS.get, parse_float=_finite)


def is_utf8(data: bytes) -> bool:
    """Whether bytes are UTF-8. msgspec and searches in bytes do not tell."""
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def without_escaped_quotes(data: bytes) -> bytes:
    """Return the text with escaped quotes and backslashes as dots, so that every remaining quote bounds a string."""
    return data.replace(b"\\\\", b"..").replace(b'\\"', b"..") if BACKSLASH in data else data


def has_lone_surrogate(unescaped: bytes, step: int) -> bool:
    """Whether a JSON document without escaped backslashes has an escaped surrogate without its other half.

    step: bytes that one search reads; a longer one would block other threads.
    """
    for start in range(0, len(unescaped), step):
        end = start + step
        found = _LONE_ESCAPE.search(unescaped, start, end + 12)  # room for a pair that begins before the end
        if found is not None and found.start() < end:
            return True
    return False


def outside_strings(unescaped: bytes) -> bytes:
    """Return what is between the strings of a JSON document without escaped quotes."""
    return b"".join(unescaped.split(b'"')[::2])


def outside_few_strings(unescaped: bytes, most: int) -> bytes | None:
    """Return the same; None if there are `most` strings or more. Long strings, such as images, take next to no time."""
    pieces: list[bytes] = []
    end = 0
    for _ in range(most):
        start = unescaped.find(_QUOTE, end)
        if start < 0:
            return b"".join((*pieces, unescaped[end:]))
        pieces.append(unescaped[end:start])
        end = unescaped.find(_QUOTE, start + 1) + 1
        if not end:
            return b"".join(pieces)
    return None


def nested_deeper(data: bytes, limit: int) -> bool:
    """Whether a JSON document nests deeper than `limit`, without recursion and without parsing it.

    The answer is right for valid JSON. For anything else it may be False; the parser refuses that anyway.
    """
    if data.count(b"[") + data.count(b"{") <= limit:
        return False
    shape = (
        without_escaped_quotes(data).translate(_BRACKETS, _NOT_SHAPE).replace(b'""', b"")
    )  # of strings without brackets
    if _QUOTE in shape:
        shape = outside_strings(shape)
    for left in range(limit, 0, -1):  # each round removes the innermost level
        if b"[" * (left + 1) in shape:
            return True
        smaller = shape.replace(b"[]", b"")
        if 4 * len(smaller) >= 3 * len(shape):  # nothing is left, or each round would go through nearly everything
            return _depth(shape) > left
        shape = smaller
    return bool(shape)


def _depth(shape: bytes) -> int:
    """Return how deep brackets nest; shape: nothing but opening and closing ones, `[` and `]`."""
    opened = accumulate(shape.translate(_OPENINGS))
    closed = accumulate(shape.translate(_CLOSINGS))
    return max(map(sub, opened, closed), default=0)


def loads(data: bytes) -> Any:
    """Parse UTF-8 JSON without changing a value: integers of any size stay integers.

    Raises ValueError for anything that is not JSON, 1e999 included, and for nesting beyond MAX_DEPTH. NaN and Infinity,
    which Python servers write and Python clients read, become null; -Infinity, a log probability, becomes -9999.0. A
    lone surrogate escape, which some servers send if a character is split over two chunks, is kept.
    """
    deep = len(data) > 2 * MAX_DEPTH and data.count(b"[") + data.count(b"{") > MAX_DEPTH  # may be; a level takes two
    if not has_long_integer(data):
        try:
            value = orjson.loads(data)
            if deep:
                orjson.dumps(value)  # the surest test, and faster than `nested_deeper`
            return value
        except orjson.JSONEncodeError:
            raise ValueError("nested too deeply") from None
        except orjson.JSONDecodeError:
            pass  # the slow path decides, and raises the error
    if deep and nested_deeper(data, MAX_DEPTH):
        raise ValueError("nested too deeply")
    try:
        return _FOREIGN.decode(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def has_long_integer(data: bytes) -> bool:
    """Whether there may be an integer outside 64 bits, which orjson silently turns into a float.

    Such integers have 19 digits or more. So have ids, which are strings, and the fractions of small numbers.
    """
    zeros = data.translate(_ONE_DIGIT)
    if zeros.rfind(_LONG_NUMBER) < 0:
        return False
    at = zeros.find(_LONG_NUMBER)
    while at > 0 and zeros[at - 1] == _POINT:  # a fraction, or in a string
        at = zeros.find(_LONG_NUMBER, at + len(_LONG_NUMBER))
    if at < 0:
        return False
    return _LONG_INTEGER.search(outside_strings(without_escaped_quotes(zeros))) is not None


def is_json(data: bytes) -> bool:
    """Whether what `loads` accepts is JSON to every other reader too: without NaN and Infinity."""
    if data.rfind(b"NaN") < 0 and data.rfind(b"Infinity") < 0:  # `find` and `in` take two or three times as long
        return True
    try:
        EXACT.decode(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return False
    return True


def dumps(value: object) -> bytes:
    """Write compact UTF-8 JSON. Floats that JSON cannot represent become null; integers of any size are written out."""
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits, or a lone surrogate, which stays an escape
        text = json.dumps(_finite_only(value), separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return _LONE.sub(lambda lone: f"\\u{ord(lone[0]):04x}", text).encode("utf-8")


def dumps_within(value: Any, depth: int) -> bytes:
    """Write a value that nests at most so deep, up to MAX_DEPTH. Raises orjson.JSONEncodeError if it nests deeper.

    It is written inside so many lists that the writer refuses to go deeper: the fastest test.
    """
    around = MAX_DEPTH - depth
    for _ in range(around):
        value = [value]
    written = orjson.dumps(value)
    return written[around : len(written) - around]


def _finite_only(value: object) -> object:
    """Copy a value, with null for each float that JSON cannot represent, as the fast writer does."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case list():
            return [_finite_only(item) for item in value]
        case dict():
            return {key: _finite_only(item) for key, item in value.items()}
        case _:
            return value
