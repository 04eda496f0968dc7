"""`/admin/upstreams/{name}/replicas`: servers register, renew leases and leave; replicas are drained and listed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nproxy.gateway.admin.announcing import Announcement, Drained, read
from nproxy.gateway.admin.gateway import Gateway
from nproxy.gateway.bodies import read_body
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.openapi.serving import OpenApi
from nproxy.openai.errors import ApiError, invalid_request, shorten
from nproxy.openai.jsonvalue import dumps
from nproxy.upstreams.membership import Server
from nproxy.upstreams.registrar import Registrar
from nproxy.upstreams.registry import TooMany

BODY_BYTES = 64 << 10
RENEWALS = 3
"""Servers are told to renew a lease so many times within its length, so that two renewals may fail or be late."""


@dataclass(frozen=True, slots=True)
class AdminContext:
    """What the handlers use. registrar: keeps the announced servers. openapi: the admin port's document."""

    gateway: Gateway
    registrar: Registrar
    openapi: OpenApi


Serve = Callable[[AdminContext, Exchange, str], Awaitable[None]]


async def announce(context: AdminContext, exchange: Exchange, upstream: str) -> None:
    """POST: register a server, or renew its lease. The answer says when to renew it again."""
    announced = read(Announcement, await read_body(exchange.request, BODY_BYTES))
    models = None if announced.models is None else tuple(dict.fromkeys(announced.models))
    server = Server(announced.url.url, announced.weight, models)
    try:
        new = context.registrar.announce(upstream, server, announced.lease_seconds)
    except TooMany as error:
        raise _conflict(str(error)) from None
    registered = {
        "upstream": upstream,
        "replica": server.label,
        "weight": server.weight,
        "models": server.models,
        "draining": server.label in context.registrar.draining(upstream),
        "lease_seconds": announced.lease_seconds,
        "renew_seconds": round(announced.lease_seconds / RENEWALS, 3),
    }
    await exchange.respond(201 if new else 200, dumps(registered))


async def leave(context: AdminContext, exchange: Exchange, upstream: str) -> None:
    """DELETE with `?url=`: remove a server before its lease ends; its calls in flight go on."""
    left = read(Drained, dumps({"url": exchange.request.query.get("url")}))
    address = str(left.url)
    if not context.registrar.leave(upstream, address):
        raise _not_registered(address) if address in await _known(context, upstream) else _not_there(upstream, address)
    await exchange.respond(204, b"")


async def drain(context: AdminContext, exchange: Exchange, upstream: str) -> None:
    """POST: send no new calls to a replica until it is undrained, whether it is listed, resolved or announced."""
    address = await _address(exchange)
    if address not in await _known(context, upstream) | context.registrar.draining(upstream):
        raise _not_there(upstream, address)
    try:
        context.registrar.drain(upstream, address)
    except TooMany as error:
        raise _conflict(str(error)) from None
    await exchange.respond(200, dumps({"upstream": upstream, "replica": address, "draining": True}))


async def undrain(context: AdminContext, exchange: Exchange, upstream: str) -> None:
    """POST: send calls to a replica again."""
    address = await _address(exchange)
    if not context.registrar.undrain(upstream, address):
        raise invalid_request(f"'{shorten(address)}' is not draining.", param="url", code="not_draining", status=404)
    await exchange.respond(200, dumps({"upstream": upstream, "replica": address, "draining": False}))


async def show(context: AdminContext, exchange: Exchange, upstream: str) -> None:
    """GET: the replicas as in /status, and all addresses that are marked as draining."""
    document = {"upstream": upstream, "replicas": await replicas(context, upstream)}
    await exchange.respond(200, dumps({**document, "draining": sorted(context.registrar.draining(upstream))}))


async def status(context: AdminContext) -> dict[str, Any]:
    """Return the content of /status, with the remaining lease of each server that announced itself."""
    document = dict(await context.gateway.status())
    upstreams: Any = document.get("upstreams", ())
    document["upstreams"] = [_with_leases(upstream, context.registrar) for upstream in upstreams]
    return document


async def replicas(context: AdminContext, upstream: str) -> list[dict[str, Any]]:
    """Return the replicas of one upstream, as in `status`."""
    document = await status(context)
    return next((one["replicas"] for one in document["upstreams"] if one["name"] == upstream), [])


def _with_leases(upstream: Mapping[str, Any], registrar: Registrar) -> dict[str, Any]:
    leases = registrar.leases(upstream["name"])
    known = [
        {**replica, "lease_seconds": round(leases[replica["replica"]], 3)} if replica["replica"] in leases else replica
        for replica in upstream["replicas"]
    ]
    return {**upstream, "replicas": known}


async def _known(context: AdminContext, upstream: str) -> set[str]:
    return {replica["replica"] for replica in await replicas(context, upstream)}


async def _address(exchange: Exchange) -> str:
    return str(read(Drained, await read_body(exchange.request, BODY_BYTES)).url)


def _conflict(message: str) -> ApiError:
    return invalid_request(message, code="too_many", status=409)


def _not_there(upstream: str, address: str) -> ApiError:
    message = f"The upstream '{upstream}' has no such replica: {shorten(address)}."
    return invalid_request(message, param="url", code="replica_not_found", status=404)


def _not_registered(address: str) -> ApiError:
    message = (
        f"'{shorten(address)}' is not registered: only registered servers can be removed."
        " POST .../replicas/drain ends new calls to any replica."
    )
    return invalid_request(message, param="url", code="replica_not_found", status=404)
