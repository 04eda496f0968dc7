"""Frames messages on a byte stream: a length of four bytes, big-endian, then so many bytes. No IO."""

from __future__ import annotations

from collections.abc import Iterator

LENGTH_BYTES = 4
LONGEST_FRAME = 64 << 20
"""More than any message needs; a longer frame is not a message."""


class FrameTooLong(ValueError):
    """A frame is too long: the peer uses another protocol, or is malicious."""


def frame(payload: bytes) -> bytes:
    """Return a message with its length before it. Raises FrameTooLong."""
    if len(payload) > LONGEST_FRAME:
        raise FrameTooLong
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload


class Frames:
    """Splits received bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that are complete with these bytes. Raises FrameTooLong; then the stream is unusable."""
        self._buffer += data
        while len(self._buffer) >= LENGTH_BYTES:
            length = int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
            if length > LONGEST_FRAME:
                raise FrameTooLong
            if len(self._buffer) < LENGTH_BYTES + length:
                return
            payload = bytes(self._buffer[LENGTH_BYTES : LENGTH_BYTES + length])
            del self._buffer[: LENGTH_BYTES + length]
            yield payload
