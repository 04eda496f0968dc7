"""What is not read: log probabilities, token ids and the like reach the client as they came.

They are most of the bytes of an answer that has them, and nothing is decided by them. To check that they are JSON takes
a seventh of the time of parsing them, which msgspec does without making objects.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from nproxy.openai.jsonvalue import has_long_integer, is_utf8, loads

Unread = orjson.Fragment
"""A part of an answer that was not read. `dumps` writes it as it came."""

LONG = 4096
"""Bytes from which a part of an answer is not read."""

_READ = frozenset({"index", "message", "delta", "text", "finish_reason", "usage", "error"})
"""The members of a choice by which something is decided."""

_BEGINNING = 64
_MOST_ALIKE = 64


class _Answer(msgspec.Struct):
    """The members of an answer that may be long, as they came. Those of a choice are by their key."""

    choices: list[dict[str, msgspec.Raw]]
    prompt_logprobs: msgspec.Raw = msgspec.Raw(b"")
    prompt_token_ids: msgspec.Raw = msgspec.Raw(b"")


_answer = msgspec.json.Decoder(_Answer)
_value = msgspec.json.Decoder(msgspec.Raw)


class _ReadAllError(ValueError):
    """The answer must be read as a whole."""


def can_pass_unread(value: bytes) -> bool:
    """Whether bytes are one JSON value, in UTF-8, so that it may be written as it came."""
    try:
        _value.decode(value)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return is_utf8(value)


def loads_but_long_parts(body: bytes) -> Any:
    """Parse a whole answer like `loads`, but leave unread what is long and decides nothing.

    In its place is an Unread. That is valid JSON, log probabilities an object, but it may nest deeper than MAX_DEPTH,
    and its numbers may overflow. An answer is read as a whole if `loads` would mend something in it, or if it is
    unclear what belongs to which choice.
    """
    if len(body) < 4 * LONG:  # it would hardly pay
        return loads(body)
    try:
        return _in_part(body)
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError, RecursionError):
        return loads(body)


def _in_part(body: bytes) -> Any:
    """Parse an answer that has long parts. Raises _ReadAllError or an error of the libraries' for any other."""
    answer = _answer.decode(body)
    parts = _Parts(body)
    for place, members in enumerate(answer.choices):
        for key, value in members.items():
            if key not in _READ and (key != "logprobs" or bytes(memoryview(value)[:1]) == b"{"):
                parts.take(value, place, key)
    parts.take(answer.prompt_logprobs, None, "prompt_logprobs")
    parts.take(answer.prompt_token_ids, None, "prompt_token_ids")
    short = parts.cut()
    if has_long_integer(short):
        raise _ReadAllError
    value = orjson.loads(short)
    orjson.dumps(value)  # it can be written, so it does not nest too deeply
    if len({choice.get("index") for choice in value["choices"]}) < len(answer.choices):
        raise _ReadAllError  # they may be pieces of one choice
    parts.put_into(value)
    return value


class _Parts:
    """The long parts of a body. Those of its choices are taken in their order."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._end = 0  # of the last one of a choice
        self._found: list[tuple[int, bytes, int | None, str]] = []  # where it begins, it, of which choice, its key

    def take(self, value: msgspec.Raw, choice: int | None, key: str) -> None:
        """Take a value if it is long. Raises _ReadAllError for one that is not UTF-8, or not found."""
        if memoryview(value).nbytes < LONG:
            return
        part = bytes(value)
        if not is_utf8(part):
            raise _ReadAllError
        start = self._start(part, 0 if choice is None else self._end)
        if choice is not None:
            self._end = start + len(part)
        self._found.append((start, part, choice, key))

    def _start(self, part: bytes, at: int) -> int:
        """Return where a part begins, from `at` on. Raises _ReadAllError: a key is there twice, or many begin alike."""
        for _ in range(_MOST_ALIKE):
            start = self._body.find(part[:_BEGINNING], at)
            if start < 0:
                break
            if self._body.startswith(part, start):
                return start
            at = start + 1
        raise _ReadAllError

    def cut(self) -> bytes:
        """Return the body with a mark in the place of each part. Raises _ReadAllError if there is none."""
        if not self._found:
            raise _ReadAllError
        self._found.sort(key=lambda found: found[0])
        pieces: list[bytes] = []
        end = 0
        for number, (start, part, _, _) in enumerate(self._found):
            pieces += self._body[end:start], b'"%b"' % _mark(number).encode()
            end = start + len(part)
        return b"".join((*pieces, self._body[end:]))

    def put_into(self, value: dict[str, Any]) -> None:
        """Put the parts into the value that was read without them. Raises _ReadAllError if one was not at its place."""
        for number, (_, part, choice, key) in enumerate(self._found):
            holder = value if choice is None else value["choices"][choice]
            if holder[key] != _mark(number):
                raise _ReadAllError
            holder[key] = Unread(part)


def _mark(number: int) -> str:
    return f"\x7fpart {number}\x7f"
