"""Request bodies that share their bytes."""

from __future__ import annotations

from aiohttp import Payload
from aiohttp.abc import AbstractStreamWriter

SLICE_BYTES = 1 << 16


class SharedPayload(Payload):
    """A body of parts that other calls send too: written in slices of 64 KiB, so that no call holds a copy of its own.

    parts: written one after the other; never changed.
    """

    def __init__(self, *parts: bytes) -> None:
        super().__init__(parts, content_type="application/json")
        self._parts = tuple(part for part in parts if part)
        self._size = sum(len(part) for part in self._parts)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The whole body as text; aiohttp asks for it in its own error paths only."""
        return b"".join(self._parts).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write all parts; waits whenever the socket's buffer is full."""
        for part in self._parts:
            if len(part) <= SLICE_BYTES:
                await writer.write(part)
                continue
            view = memoryview(part)
            for start in range(0, len(part), SLICE_BYTES):
                await writer.write(view[start : start + SLICE_BYTES])
                await writer.drain()
