"""JSON as values: exact loading of what upstreams send, compact and safe writing of what clients read."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn, TypeAlias

import orjson

JSON: TypeAlias = "None | bool | int | float | str | list[JSON] | dict[str, JSON]"

# orjson turns integers outside 64 bits into floats, and stays silent about it.
_LONG_NUMBER = re.compile(rb"[0-9]{19}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


EXACT = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
"""A decoder of the standard library that refuses NaN, Infinity and numbers that overflow to infinity."""


def loads(data: bytes) -> Any:
    """Parse UTF-8 JSON without changing a value: integers of any size stay integers.

    Raises ValueError for anything that is not JSON, NaN and 1e999 included, and for bottomless nesting.
    A lone surrogate escape, which some servers send when a character is split over two chunks, is kept.
    """
    if _LONG_NUMBER.search(data) is None:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            pass  # the slower road decides, and words the error
    try:
        return EXACT.decode(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def dumps(value: object) -> bytes:
    """Write compact UTF-8 JSON; NaN and infinities raise ValueError instead of becoming invalid JSON."""
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits, or a lone surrogate
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
