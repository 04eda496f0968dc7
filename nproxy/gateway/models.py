"""`GET /v1/models`: the models of all upstreams, as one list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nproxy.gateway.app import App
from nproxy.gateway.exchange import Exchange
from nproxy.openai.errors import model_not_found
from nproxy.openai.jsonvalue import dumps
from nproxy.upstreams.upstream import Upstream


async def list_models(app: App, exchange: Exchange) -> None:
    """Answer with the merged list, without the models that the caller may not use.

    A model of several upstreams is listed once, with the entry of the first one. If a key is for some models only, they
    are listed under the names that the key has, even if an upstream lists them under other names.
    """
    await app.upstreams.renew()
    merged = _merged(app, exchange)
    for name in sorted((exchange.caller.models or frozenset()) - merged.keys()):
        if (entry := _one(app, name)) is not None:
            merged[name] = entry
    await exchange.respond(200, dumps({"object": "list", "data": list(merged.values())}))


async def one_model(app: App, exchange: Exchange, model: str) -> None:
    """Answer with the entry of one model, under the name that the request uses. Raises ApiError 404."""
    if not exchange.caller.may_use(model):
        raise model_not_found(model)
    await app.upstreams.renew(lacking=app.upstreams.known(model) is None)
    if (entry := _one(app, model)) is None:
        raise model_not_found(model)
    await exchange.respond(200, dumps(entry))


def _one(app: App, model: str) -> dict[str, Any] | None:
    """Return the entry of a model by the name that clients use; None if no upstream is known to have it."""
    if (route := app.upstreams.known(model)) is None:
        return None
    entry = route.upstream.models.entry(model)
    return _listed(route.upstream, model, entry or {})


def _merged(app: App, exchange: Exchange) -> dict[str, dict[str, Any]]:
    merged: dict[str, dict[str, Any]] = {}
    for upstream in app.upstreams.all:
        for shown, entry in upstream.models.entries().items():
            if exchange.caller.may_use(shown):
                merged.setdefault(shown, _listed(upstream, shown, entry))
    return merged


def _listed(upstream: Upstream, shown: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"object": "model", "created": 0, "owned_by": upstream.name, **entry, "id": shown}
