"""Decodes the content-encoding of a request's body, up to a limit."""

from __future__ import annotations

import zlib

from nproxy.openai.errors import body_too_large, invalid_request

_GZIP = 16 + zlib.MAX_WBITS
_WINDOW = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": zlib.MAX_WBITS}


class Decoder:
    """Decodes a body piece by piece. `limit`: the most bytes that the decoded body may have."""

    def __init__(self, encoding: str | None, limit: int) -> None:
        """Take the header's value, None if there is none. Raises ApiError 415 for an unknown encoding."""
        self._room = limit
        self._limit = limit
        self._inflate: zlib._Decompress | None = None
        encoding = (encoding or "identity").strip().lower()
        if encoding in ("identity", ""):
            return
        window = _WINDOW.get(encoding)
        if window is None:
            message = "The content-encoding is not supported; send identity, gzip or deflate."
            raise invalid_request(message, status=415)
        self._inflate = zlib.decompressobj(window)

    def feed(self, data: bytes) -> bytes:
        """Decode a piece. Raises ApiError 400 if it cannot be decoded, 413 if the body becomes too large."""
        if self._inflate is not None:
            try:
                # One byte beyond the limit is enough to know: a decompression bomb is noticed before it has grown.
                data = self._inflate.decompress(data, self._room + 1)
            except zlib.error:
                raise invalid_request("The request body does not match its content-encoding.") from None
        self._room -= len(data)
        if self._room < 0:
            raise body_too_large(self._limit)
        return data

    def end(self) -> None:
        """Note that the body is over. Raises ApiError 400 if its compressed data does not end there."""
        if self._inflate is not None and (not self._inflate.eof or self._inflate.unused_data):
            raise invalid_request(
                "The request body cannot be decoded: its compressed data is incomplete, or is followed by other data."
            )
