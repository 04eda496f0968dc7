"""Places: where the values of a chunk are, in what was parsed and in its bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from nproxy.openai.chunks import UpstreamChoice, UpstreamChunk
from nproxy.openai.dialect import CHAT, Dialect
from nproxy.openai.jsonvalue import EXACT, JSON, loads

Place = tuple[str, ...]
"""The keys that lead to a value of a chunk with one choice: `("choices", "delta", "content")`, `("choices",
"logprobs")`, `("obfuscation",)`. Lists on the way have one entry."""

NAMES: tuple[Place, ...] = (("id",), ("created",))
"""Names of a chunk, which the client does not get: it gets those of its own answer."""

USAGE: Place = ("usage",)
"""What a chunk reports of the tokens so far. It is counted, and the client gets a total of its own, or none."""

Values = Mapping[Place, JSON]

_DECIDING = frozenset({"message", "usage", "error", "delta", "content", "role", "tool_calls", "function_call"})
"""Members of a choice, and of a delta, by whose values something is decided, so that they must be parsed."""

_MOST_ALIKE = 4
"""Members with the same key, among which a value is looked for."""

string_rest = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL).match
"""Matches the rest of a string, with its quote."""

may_be_changed = re.compile(r"[\w.-]{1,64}", re.ASCII).fullmatch
"""Matches the keys of values that may differ between chunks; others might be found inside strings."""


def value_in(said: Any, place: Place) -> Any:
    """Return the value in a place of a parsed chunk, or of a part of it.

    Raises LookupError, TypeError or ValueError if there is none.
    """
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
    return UpstreamChoice(choice.index, delta, choice.role, choice.finish_reason, logprobs, extra), top


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


# ---- in bytes


@lru_cache(maxsize=64)
def beginning(key: str) -> re.Pattern[bytes]:
    """Return a pattern that matches a member's key and what leads to its value."""
    return re.compile(rb'"%b"[ \t\r\n]*:[ \t\r\n]*' % re.escape(key.encode("utf-8", "replace")))


@lru_cache(maxsize=16)
def opening(key: str) -> re.Pattern[bytes]:
    """Return a pattern that matches a member's key and what leads to its string value."""
    return re.compile(beginning(key).pattern + b'"')


def find_text(data: bytes, key: str, value: object) -> tuple[int, int] | None:
    """Return where the member's string begins and ends, between its quotes; None if it is not found."""
    found = opening(key).search(data)
    rest = string_rest(data, found.end()) if found is not None else None
    if found is None or rest is None:
        return None
    start, end = found.end(), rest.end() - 1
    try:
        same = loads(data[start - 1 : end + 1]) == value
    except ValueError:
        return None
    return (start, end) if same else None


def find_value(data: bytes, key: str, value: object) -> tuple[int, int] | None:
    """Return where the member's value begins and ends; None if no member with this key has it."""
    for found_key in islice(beginning(key).finditer(data), _MOST_ALIKE):
        start = found_key.end()
        try:
            text = data[start:].decode()
            found, end = EXACT.raw_decode(text)
        except (ValueError, RecursionError):
            return None
        if found == value:
            return start, start + len(text[:end].encode())
    return None
