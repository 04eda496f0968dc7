"""Reads request bodies: with a limit of size and of time, and decoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import nullcontext

from aiohttp import ClientPayloadError, hdrs
from aiohttp.web_protocol import RequestPayloadError
from aiohttp.web_request import BaseRequest

from nproxy.gateway.admission.memory import MemoryReservation
from nproxy.openai.body import Body
from nproxy.openai.encoding import Decoder
from nproxy.openai.errors import ApiError, body_too_large, invalid_request

BODY_SECONDS = 30.0
"""How long a whole body may take, or the wait for the next piece of a streamed one."""
_BROKEN = RequestPayloadError, ClientPayloadError, ValueError
"""The errors of a body that is incomplete or malformed."""


async def read_body(request: BaseRequest, limit: int, *, reservation: MemoryReservation | None = None) -> bytes:
    """Read the whole body, decoded from gzip or deflate.

    reservation: counts its bytes while they come.

    Raises ApiError: 413 above `limit` bytes (as sent or decoded), 408 if it is not complete after BODY_SECONDS, 415 for
    another content-encoding, 400 if it breaks off or cannot be decoded, and what `reservation` raises.
    """
    try:
        async with nullcontext() if request.content.is_eof() else asyncio.timeout(BODY_SECONDS):
            return await _decoded(request, limit, reservation)
    except TimeoutError:
        raise _too_slow() from None


def body_at_hand(request: BaseRequest, limit: int, reservation: MemoryReservation) -> bytes | None:
    """Return the whole body if it has come with its head and needs no decoding, as nearly all; else None.

    Raises what `read_body` raises.
    """
    if not request.content.is_eof() or hdrs.CONTENT_ENCODING in request.headers:
        return None
    try:
        data = request.content.read_nowait()
    except _BROKEN:
        raise _broken_off() from None
    if len(data) > limit:
        raise body_too_large(limit)
    reservation.reach(len(data))
    return data


async def _decoded(request: BaseRequest, limit: int, reservation: MemoryReservation | None) -> bytes:
    """Do the work of `read_body`, without a time limit."""
    content = request.content
    decoder = Decoder(request.headers.get(hdrs.CONTENT_ENCODING), limit)
    parts: list[bytes] = []
    read = size = 0
    length = request.content_length
    if reservation is not None:
        reservation.expect(min(length or 0, limit))
    _refuse_long(length, limit)
    if hdrs.EXPECT in request.headers:
        await continue_if_asked(request)
    while not content.at_eof() and (data := await _some(request)):
        read += len(data)
        if read > limit:
            raise body_too_large(limit)
        parts.append(decoder.feed(data))
        size += len(parts[-1])
        if reservation is not None:
            reservation.reach(size)
    decoder.end()
    return parts[0] if len(parts) == 1 else b"".join(parts)


def parsed(raw: bytes, check: Callable[[], None]) -> Body:
    """Parse a body. The result takes many times the memory of its bytes. Do not parse a LONG one in the event loop.

    check: called first; it raises if memory is short. Long bodies wait for each other, so this may have changed since
    the request came. Raises ApiError 400.
    """
    check()
    return Body.parse(raw)


async def chunks(request: BaseRequest, limit: int) -> AsyncGenerator[bytes]:
    """Yield the body as it comes, undecoded.

    Raises ApiError: 413 above `limit` bytes, 408 if nothing comes for BODY_SECONDS, 400 if it breaks off.
    """
    _refuse_long(request.content_length, limit)
    await continue_if_asked(request)
    size = 0
    while True:
        try:
            async with nullcontext() if request.content.is_eof() else asyncio.timeout(BODY_SECONDS):
                data = await _some(request)
        except TimeoutError:
            raise _too_slow() from None
        if not data:
            return
        size += len(data)
        if size > limit:
            raise body_too_large(limit)
        yield data


def _refuse_long(length: int | None, limit: int) -> None:
    if length is not None and length > limit:
        raise body_too_large(limit)


async def _some(request: BaseRequest) -> bytes:
    """Wait for the next bytes of the body; returns none at its end. Raises ApiError 400 if it breaks off."""
    try:
        return await request.content.readany()
    except _BROKEN:
        raise _broken_off() from None


async def continue_if_asked(request: BaseRequest) -> None:
    """Answer `Expect: 100-continue`, so that the client sends its body without waiting."""
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue" and request.version >= (1, 1):
        writer = request.writer
        await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.output_size = 0  # the actual answer has not begun


def _broken_off() -> ApiError:
    return invalid_request("The request body is incomplete or malformed.")


def _too_slow() -> ApiError:
    return invalid_request("The request body did not arrive in time.", status=408)
