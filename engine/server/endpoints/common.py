"""What every endpoint's handler needs: the engine's state, the request's body, and JSON answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from aiohttp import ClientPayloadError, hdrs, web
from aiohttp.web_protocol import RequestPayloadError

from engine.server.serving import Serving
from nproxy.openai.body import Body
from nproxy.openai.encoding import Decoder
from nproxy.openai.errors import invalid_request
from nproxy.openai.jsonvalue import dumps

SERVING = web.AppKey("serving", Serving)

_BODY_SECONDS = 30.0
_Asked = TypeVar("_Asked")


async def read(request: web.Request, parse: Callable[[Body], _Asked]) -> _Asked:
    """Read and parse the body; a large one is parsed off the event loop.

    Raises ApiError, as `parse` does too.
    """
    raw = await _read(request)
    return await request.app[SERVING].by_size(len(raw), lambda: parse(Body.parse(raw)))


async def _read(request: web.Request) -> bytes:
    """Return the body, decoded from gzip or deflate.

    Raises ApiError: 408 if it does not come in time, 415 for another content-encoding, 400 for a body that breaks off
    or cannot be decoded, 413 for one that is too large when decoded.
    """
    decoder = Decoder(request.headers.get(hdrs.CONTENT_ENCODING), request.client_max_size)
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            body = decoder.feed(await request.read())
    except TimeoutError as error:
        raise invalid_request("The request body did not arrive in time.", status=408) from error
    except (RequestPayloadError, ClientPayloadError):
        raise invalid_request("The request body is incomplete or malformed.") from None
    decoder.end()
    return body


def json_answer(value: object) -> web.Response:
    """Answer 200 with a value as JSON."""
    return web.Response(body=dumps(value), content_type="application/json")
