"""Messages on a stream of bytes: four bytes of length, big-endian, then so many bytes. No IO."""

from __future__ import annotations

from collections.abc import Iterator

LENGTH_BYTES = 4
LONGEST_FRAME = 64 << 20
"""More than any message needs: what says that it is longer is no message."""


class FrameTooLong(ValueError):
    """The peer does not speak our language, or means harm."""


def frame(payload: bytes) -> bytes:
    """One message with its length before it. Raises FrameTooLong."""
    if len(payload) > LONGEST_FRAME:
        raise FrameTooLong
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload


class Frames:
    """Takes bytes as they come and gives whole messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that end with these bytes. Raises FrameTooLong, after which the stream is of no use."""
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
