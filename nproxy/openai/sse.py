"""Server-sent events from bytes, incrementally, however the bytes are split."""

from __future__ import annotations

from typing import NamedTuple

MAX_EVENT = 16 * 1024 * 1024

BETWEEN = b"\n\ndata: "
"""The bytes between the data of two consecutive events, if each has one line of data and nothing else."""

_LF, _CR = b"\n\r"  # as numbers: bytes are searched for one ten times as fast as for a one-byte string
BOM = b"\xef\xbb\xbf"
"""The byte order mark, which may come before the first event."""


class SSEError(ValueError):
    """The stream exceeds a limit. The decoder cannot be used afterwards."""


class SSEEvent(NamedTuple):
    """One event: its data lines joined with LF, and its `event` field ("" where it had none)."""

    data: bytes
    name: str = ""


class SSEDecoder:
    """Decodes a byte stream of server-sent events (WHATWG HTML, section 9.2), in linear time.

    Comments, `id` and `retry` are dropped, and so are events without data, or with empty data. An `error` field, which
    is llama.cpp's own (until September 2025), is the data of an event of that name. The same bytes give the same events
    in any split. max_event: bytes from one blank line to the next.
    """

    __slots__ = ("_after_cr", "_failed", "_max_event", "_pending", "_start")

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self._max_event = max_event
        self._pending = bytearray()  # what follows the last blank line; its line ends are all LF
        self._start: bytes | None = b""  # the stream's first bytes, while they may still become a BOM
        self._after_cr = False  # the last byte was a CR: an LF that follows belongs to it
        self._failed = False

    def feed(self, data: bytes) -> list[SSEEvent]:
        """Take the next bytes and return the events that they complete.

        Raises SSEError for an event over the limit. If complete events came before it, these are returned first, and
        the next call raises.
        """
        if self._failed:
            raise self._oversize()
        if self._start is not None:
            data = self._without_bom(data)
        if not data:
            return []
        if self._after_cr or _CR in data:
            data = self._with_lf(data)
        pending = self._pending
        if pending:
            seen = len(pending) - 1
            pending += data
            if pending.find(b"\n\n", seen) < 0:
                data = b""
            else:
                data = bytes(pending)
                pending.clear()
        blocks = data.split(b"\n\n")
        pending += blocks.pop()
        self._failed = len(pending) - pending.endswith(b"\n") > self._max_event
        events = self._events(blocks)
        if self._failed and not events:
            raise self._oversize()
        return events

    def usual(self, data: bytes) -> tuple[bytes, int] | None:
        """Return the data of a segment's events, joined by `BETWEEN`, and their number; `feed` need not see it.

        None if `feed` must see the segment: for anything but whole events of one data line each, and in the middle of
        an event.
        """
        if self._pending or self._start or self._after_cr or self._failed:
            return None
        if data[:6] != b"data: " or not data[-1] == data[-2] == _LF or _CR in data or len(data) > self._max_event:
            return None
        inner = data[6:-2]
        self._start = None  # it is no BOM
        if _LF not in inner:
            return (inner, 1) if inner else None
        between = inner.count(BETWEEN)
        if inner.count(b"\n") != 2 * between:
            return None
        empty = inner.startswith(BETWEEN) or inner.endswith(BETWEEN) or BETWEEN + BETWEEN in inner
        return None if empty else (inner, between + 1)

    def close(self) -> list[SSEEvent]:
        """The stream ended cleanly: return the last event if its blank line is missing."""
        if self._failed:
            raise self._oversize()
        last = bytes(self._pending)
        self._pending.clear()
        return self._events([last.removesuffix(b"\n")])

    def _events(self, blocks: list[bytes]) -> list[SSEEvent]:
        """Read blocks, each without its blank line. Stops at one that is too long, and notes that."""
        events: list[SSEEvent] = []
        for block in blocks:
            if len(block) > self._max_event:
                self._failed = True
                break
            if (event := _read(block)) is not None:
                events.append(event)
        return events

    def _without_bom(self, data: bytes) -> bytes:
        start = (self._start or b"") + data
        if len(start) < len(BOM) and BOM.startswith(start):
            self._start = start
            return b""
        self._start = None
        return start.removeprefix(BOM)

    def _with_lf(self, data: bytes) -> bytes:
        """Make every line end an LF. A CR ends its line at once, so a following LF in the next segment is dropped."""
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _oversize(self) -> SSEError:
        return SSEError(f"an event is larger than {self._max_event} bytes")


def _read(block: bytes) -> SSEEvent | None:
    """Read the lines of one block; None if they carry no data."""
    data: list[bytes] = []
    name = ""
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
        elif field == b"error" and value:
            data, name = [value], "error"
            break
    joined = b"\n".join(data)
    return SSEEvent(joined, name) if joined else None
