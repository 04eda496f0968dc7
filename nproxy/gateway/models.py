"""`GET /v1/models`: what all upstreams serve, as one list."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from nproxy.gateway.app import App
from nproxy.gateway.exchange import Exchange
from nproxy.openai.errors import model_not_found
from nproxy.openai.jsonvalue import dumps
from nproxy.upstreams.upstream import Upstream


async def list_models(app: App, exchange: Exchange) -> None:
    """Answer with the merged list; what the caller may not use is left out.

    A model in several upstreams stands once, as its first upstream tells it.
    """
    merged = await _merged(app, exchange)
    await exchange.respond(200, dumps({"object": "list", "data": list(merged.values())}))


async def one_model(app: App, exchange: Exchange, model: str) -> None:
    """Answer with one entry of the list, under the name that it is asked by, or 404."""
    route = await app.upstreams.find(model)
    if route is None or not exchange.caller.may_use(model):
        raise model_not_found(model)
    entry = await route.upstream.models.entry(model)
    await exchange.respond(200, dumps(_told(route.upstream, model, entry or {})))


async def _merged(app: App, exchange: Exchange) -> dict[str, dict[str, Any]]:
    lists = await asyncio.gather(*(upstream.models.entries() for upstream in app.upstreams.all))
    merged: dict[str, dict[str, Any]] = {}
    for upstream, entries in zip(app.upstreams.all, lists, strict=True):
        for shown, entry in entries.items():
            if exchange.caller.may_use(shown):
                merged.setdefault(shown, _told(upstream, shown, entry))
    return merged


def _told(upstream: Upstream, shown: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"object": "model", "created": 0, "owned_by": upstream.name, **entry, "id": shown}
