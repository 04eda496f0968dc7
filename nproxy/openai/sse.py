"""Server-sent events from bytes, incrementally, however the bytes are split."""

from __future__ import annotations

from typing import NamedTuple

MAX_EVENT = 16 * 1024 * 1024


class SSEError(ValueError):
    """The stream breaks a limit; the decoder is of no use afterwards."""


class SSEEvent(NamedTuple):
    """One event: its data lines joined with LF, and its `event` field ("" where it had none)."""

    data: bytes
    name: str = ""


class SSEDecoder:
    """Decode a byte stream of server-sent events (WHATWG HTML, section 9.2), in linear time.

    Comments, `id` and `retry` are dropped; events without data do not appear. Feeding the same bytes in
    any split gives the same events. max_event: bytes from one blank line to the next.
    """

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self._max_event = max_event

    def feed(self, data: bytes) -> list[SSEEvent]:
        """Take the next bytes and give the events that they complete. Raises SSEError for an event over the limit."""
        raise NotImplementedError

    def close(self) -> list[SSEEvent]:
        """The stream ended cleanly: give the last event if its blank line is missing."""
        raise NotImplementedError
