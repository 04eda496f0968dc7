"""/v1/responses: create, retrieve, delete, and the input of a response."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Set

from aiohttp import web

from engine.config import EngineConfig
from engine.server.answering.answers import Answer
from engine.server.answering.logprobs import Spelling
from engine.server.answering.output import Output
from engine.server.asking.members import Members
from engine.server.asking.order import Order, read_order
from engine.server.asking.salt import salt_of
from engine.server.endpoints.common import SERVING, json_answer, read
from engine.server.endpoints.responses.items import Item
from engine.server.endpoints.responses.output import Items
from engine.server.endpoints.responses.request import Asked, read_asked, renamed, renamed_field
from engine.server.endpoints.responses.turns import Turn, Turns
from engine.server.endpoints.responses.writer import Response, ResponseWriter
from engine.server.groups import groups, manners, rules
from engine.server.preparing.prompts import Prompt
from engine.server.serving import Serving
from nproxy.openai.body import Body
from nproxy.openai.errors import ApiError, invalid_request, shorten
from nproxy.openai.jsonvalue import JSON, dumps
from nproxy.openai.requests import parse_chat

_PATH = "/v1/responses"
_MOST_LISTED = 100
_INCLUDE = {"include", "include[]"}
"""They add nothing here: everything that could be included is in the response already."""
_TURNS = web.AppKey("turns", Turns)


def add_routes(app: web.Application, config: EngineConfig) -> None:
    """Serve the endpoint and the paths below it."""
    app[_TURNS] = Turns(config.max_responses, config.max_response_bytes)
    app.router.add_post(_PATH, _create)
    app.router.add_post(f"{_PATH}/input_tokens", _count)
    app.router.add_get(f"{_PATH}/{{id}}", _retrieve)
    app.router.add_delete(f"{_PATH}/{{id}}", _delete)
    app.router.add_get(f"{_PATH}/{{id}}/input_items", _input_items)


async def _create(request: web.Request) -> web.StreamResponse:
    serving = request.app[SERVING]
    with serving.request():
        turns, asked = request.app[_TURNS], await _asked(request, serving)
        owner = salt_of(request.headers, {})
        previous = _before(turns, owner, asked)
        order, prompt = await _prepared(serving, asked, previous)
        model, router, table = order.request.model, serving.router, serving.tokenizer.table
        salt, adapter = salt_of(request.headers, asked.fields), serving.adapter(model)
        items = Items(_new_id)
        head: Response = {"id": _new_id("resp"), "object": "response", "created_at": int(time.time()), "model": model}
        loop = asyncio.get_running_loop()

        def keep(response: Response) -> None:
            if asked.store:  # a long answer is written in a thread, and only the loop may change the turns
                turn = Turn(owner, response, asked.items, tuple(items.done), previous)
                loop.call_soon_threadsafe(turns.keep, turn)

        adds = groups(order, [prompt], router.ready, serving.random, salt=salt, adapter=adapter)
        with router.submit(adds, [renamed_field(name) for name in rules(order, [prompt])]) as ticket:
            answer = Answer(
                ResponseWriter(head | asked.repeated(), items, Spelling(table, order.output_options), keep),
                ticket,
                Output(ticket.groups, table, manners(order, [prompt], table)),
                prompt_tokens=len(prompt.tokens),
            )
            if asked.stream:
                return await answer.stream(request)
            return web.Response(body=await answer.whole(1), content_type="application/json")


async def _count(request: web.Request) -> web.Response:
    """POST /v1/responses/input_tokens: how many tokens the model would read for such a request."""
    serving = request.app[SERVING]
    with serving.request():
        asked = await _asked(request, serving)
        previous = _before(request.app[_TURNS], salt_of(request.headers, {}), asked)
        _, prompt = await _prepared(serving, asked, previous)
        return json_answer({"object": "response.input_tokens", "input_tokens": len(prompt.tokens)})


async def _asked(request: web.Request, serving: Serving) -> Asked:
    return await read(request, lambda body: read_asked(serving.named(body.fields), _new_id))


def _before(turns: Turns, owner: str, asked: Asked) -> Turn | None:
    """The turn that a request goes on from; raises ApiError 404 if this key has no such turn."""
    return None if asked.previous is None else turns.find(owner, asked.previous, "previous_response_id")


async def _prepared(serving: Serving, asked: Asked, previous: Turn | None) -> tuple[Order, Prompt]:
    """Return the chat that the request and all turns before it amount to; its errors name the request's own fields."""
    try:
        chat = dumps(asked.chat(previous.conversation if previous else []))
        order = await serving.by_size(len(chat), lambda: _order(chat, serving))
        [prompt] = await serving.prepare(order)
    except ApiError as error:
        raise renamed(error) from None
    return order, prompt


def _order(chat: bytes, serving: Serving) -> Order:
    order = read_order(parse_chat(Body.parse(chat), serving.limits), serving.most_logprobs)
    serving.adapter(order.request.model)
    return order


async def _retrieve(request: web.Request) -> web.Response:
    _check_query(request, _INCLUDE | {"include_obfuscation"})
    return json_answer(_turn(request).response)


async def _delete(request: web.Request) -> web.Response:
    turn = _turn(request)
    request.app[_TURNS].forget(turn)
    return json_answer({"id": turn.id, "object": "response", "deleted": True})


async def _input_items(request: web.Request) -> web.Response:
    """Answer with everything that the model was given, including earlier turns; newest first unless `order` is asc."""
    _check_query(request, _INCLUDE | {"limit", "order", "after"})
    context, query = _turn(request).context, request.query
    limit = Members({"limit": _number(query.get("limit", "20"))}).integer("limit", 1, _MOST_LISTED) or 0
    order, after = query.get("order", "desc"), query.get("after")
    if order not in ("asc", "desc"):
        raise invalid_request("'order' must be 'asc' or 'desc'.", param="order")
    listed = context if order == "asc" else context[::-1]
    if after is not None:
        places = [place for place, item in enumerate(listed, 1) if item["id"] == after]
        if not places:
            raise invalid_request("The response has no such item.", param="after", status=404)
        listed = listed[places[0] :]
    return json_answer(_page(listed, limit))


def _page(listed: list[Item], limit: int) -> dict[str, object]:
    page = listed[:limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": len(listed) > limit}


def _turn(request: web.Request) -> Turn:
    """Return the turn that the path names; raise ApiError 404 if this key has none."""
    return request.app[_TURNS].find(salt_of(request.headers, {}), request.match_info["id"])


def _check_query(request: web.Request, known: Set[str]) -> None:
    """Raise ApiError 400 for the first name that would be ignored."""
    for name in request.query:
        if name not in known:
            name = shorten(name)
            message = f"'{name}' is not supported by this engine."
            raise invalid_request(message, param=name, code="unsupported_parameter")


def _number(text: str) -> JSON:
    return int(text) if text.isdecimal() and len(text) < 10 else text


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
