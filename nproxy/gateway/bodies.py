"""Reading what a client sends: within the limit, within the time, decoded."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator

from aiohttp import ClientPayloadError, hdrs
from aiohttp.web_protocol import RequestPayloadError
from aiohttp.web_request import BaseRequest

from nproxy.openai.errors import ApiError, body_too_large, invalid_request

BODY_SECONDS = 30.0

_GZIP = 16 + zlib.MAX_WBITS
_WINDOW = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": zlib.MAX_WBITS}


async def read_body(request: BaseRequest, limit: int, seconds: float = BODY_SECONDS) -> bytes:
    """Read the whole body, decoded from gzip or deflate.

    Raises ApiError: 413 above `limit` bytes (as sent or decoded), 408 when it is not here after `seconds`, 415 for
    another content-encoding, 400 for a body that breaks off or cannot be decoded.
    """
    inflate = _decoder(request)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for data in chunks(request, limit, None):
                part = data if inflate is None else _inflate(inflate, data, limit + 1 - size)
                size += len(part)
                if size > limit:
                    raise body_too_large(limit)
                parts.append(part)
    except TimeoutError:
        raise _too_slow() from None
    if inflate is not None and (not inflate.eof or inflate.unused_data):
        raise invalid_request("The request body cannot be decoded: its compressed data does not end where it should.")
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def chunks(request: BaseRequest, limit: int, seconds: float | None = BODY_SECONDS) -> AsyncGenerator[bytes]:
    """Give the body as it comes, undecoded. Raises ApiError: 413 above `limit`, 408 after so many silent seconds."""
    if request.content_length is not None and request.content_length > limit:
        raise body_too_large(limit)
    await continue_if_asked(request)
    size = 0
    while True:
        try:
            if seconds is None or request.content.is_eof():
                data = await request.content.readany()
            else:
                async with asyncio.timeout(seconds):
                    data = await request.content.readany()
        except TimeoutError:
            raise _too_slow() from None
        except (RequestPayloadError, ClientPayloadError, ValueError):
            raise invalid_request("The request body is broken off or malformed.") from None
        if not data:
            return
        size += len(data)
        if size > limit:
            raise body_too_large(limit)
        yield data


async def continue_if_asked(request: BaseRequest) -> None:
    """Answer `Expect: 100-continue`, so that the client sends its body without waiting."""
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue" and request.version >= (1, 1):
        writer = request.writer
        await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.output_size = 0  # the answer itself has not begun


def _decoder(request: BaseRequest) -> zlib._Decompress | None:
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower()
    if encoding in ("identity", ""):
        return None
    window = _WINDOW.get(encoding)
    if window is None:
        raise invalid_request("The content-encoding is not supported; send identity, gzip or deflate.", status=415)
    return zlib.decompressobj(window)


def _inflate(decoder: zlib._Decompress, data: bytes, room: int) -> bytes:
    """Decode, but never more than `room` bytes: a bomb is noticed before it has grown."""
    try:
        return decoder.decompress(data, max(1, room))
    except zlib.error:
        raise invalid_request("The request body cannot be decoded by its content-encoding.") from None


def _too_slow() -> ApiError:
    return invalid_request("The request body did not come in time.", status=408)
