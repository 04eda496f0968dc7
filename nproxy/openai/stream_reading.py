"""What one event of a stream is: a chunk, an error in place of one, the end, or nothing."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from nproxy.openai.chunks import error_in, is_done, is_null, parse_object
from nproxy.openai.errors import ApiError
from nproxy.openai.in_band import error_in_band
from nproxy.openai.sse import SSEEvent


class Mark(Enum):
    """An event that is neither a chunk nor an error."""

    NOTHING = auto()
    """It says nothing; see `is_null`."""
    DONE = auto()
    """`[DONE]`: nothing that follows counts."""


def read_event(event: SSEEvent) -> dict[str, Any] | ApiError | Mark:
    """Return what an event is. A chunk is returned as an object, for `chunk_of`. Raises MalformedChunk.

    An error is one by its name (`event: error`, or llama.cpp's field) or by what it contains.
    """
    data = event.data
    if is_done(data):
        return Mark.DONE
    if event.name == "error":
        return error_in_band(data)
    if is_null(data):
        return Mark.NOTHING
    value = parse_object(data)
    return value if error_in(value) is None else error_in_band(data)
