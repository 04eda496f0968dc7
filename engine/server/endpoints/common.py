"""What every endpoint's handler needs: the engine's state, the request's body, and JSON for an answer."""

from __future__ import annotations

import asyncio

from aiohttp import web

from engine.server.serving import Serving
from nproxy.openai.errors import invalid_request
from nproxy.openai.jsonvalue import dumps

SERVING = web.AppKey("serving", Serving)

_BODY_SECONDS = 30.0


async def read(request: web.Request) -> bytes:
    """Read the body; raises ApiError 408 when it does not come in time."""
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await request.read()
    except TimeoutError as error:
        raise invalid_request("The request body did not come in time.", status=408) from error


def json_answer(value: object) -> web.Response:
    """Answer 200 with a value as JSON."""
    return web.Response(body=dumps(value), content_type="application/json")
