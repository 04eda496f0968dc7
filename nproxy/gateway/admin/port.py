"""The admin port: a separate HTTP server, with the same limits as the gateway's."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import unquote

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from nproxy.concurrency.tasks import beside
from nproxy.config import Admin
from nproxy.gateway.admin import replicas
from nproxy.gateway.admin.document import admin_document
from nproxy.gateway.admin.door import demand_token, refuse_pages
from nproxy.gateway.admin.gateway import Gateway
from nproxy.gateway.admin.replicas import AdminContext, Serve
from nproxy.gateway.answering import WriteGuard, answer
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.heads import origin_form, refusal
from nproxy.gateway.introspect import answer_health, answer_metrics, answer_ready
from nproxy.gateway.listening import base_url, served
from nproxy.gateway.openapi.serving import OpenApi
from nproxy.gateway.record import Record
from nproxy.gateway.request_id import request_id
from nproxy.gateway.server import HttpServer
from nproxy.openai.errors import invalid_request, unknown_url, wrong_method
from nproxy.openai.jsonvalue import dumps
from nproxy.telemetry.logs import access
from nproxy.upstreams.registrar import Registrar

WRITE_SECONDS = 60.0
CLOSE_SECONDS = 1.0


async def _health(context: AdminContext, exchange: Exchange, _: str) -> None:
    await answer_health(exchange)


async def _ready(context: AdminContext, exchange: Exchange, _: str) -> None:
    await answer_ready(exchange, await context.gateway.why_unready())


async def _metrics(context: AdminContext, exchange: Exchange, _: str) -> None:
    await answer_metrics(exchange, context.gateway.config, context.gateway.report)


async def _status(context: AdminContext, exchange: Exchange, _: str) -> None:
    await exchange.respond(200, dumps(await replicas.status(context)))


async def _openapi(context: AdminContext, exchange: Exchange, _: str) -> None:
    await context.openapi.serve(exchange, context.gateway.config)


async def _restart(context: AdminContext, exchange: Exchange, _: str) -> None:
    context.gateway.restart()
    await exchange.respond(202, b'{"status":"restarting"}')


_REPLICAS = re.compile(r"/admin/upstreams/(?P<upstream>[^/]+)/replicas(?P<act>/drain|/undrain)?")

_SERVED: Mapping[str, Mapping[str, Serve]] = {
    "/health": {"GET": _health},
    "/ready": {"GET": _ready},
    "/metrics": {"GET": _metrics},
    "/status": {"GET": _status},
    "/openapi.json": {"GET": _openapi},
    "/admin/restart": {"POST": _restart},
}
"""Handlers by path and method."""

_OF_REPLICAS: Mapping[str | None, Mapping[str, Serve]] = {
    None: {"GET": replicas.show, "POST": replicas.announce, "DELETE": replicas.leave},
    "/drain": {"POST": replicas.drain},
    "/undrain": {"POST": replicas.undrain},
}
"""Handlers of `_REPLICAS` by the end of the path, and method."""

_OPEN = frozenset({"/health", "/ready", "/openapi.json"})
"""Paths that need no token, as on the gateway's own port."""


@asynccontextmanager
async def admin_port(gateway: Gateway, registrar: Registrar, sock: socket.socket | None = None) -> AsyncIterator[str]:
    """Serve the admin port while the block runs, and remove servers whose leases end. Yields its URL.

    sock: a bound socket to listen on instead of `admin.host` and `admin.port`. Raises OSError if these cannot be bound.
    """
    http = HttpServer(
        partial(_answer, AdminContext(gateway, registrar, OpenApi(admin_document)), WriteGuard(WRITE_SECONDS))
    )
    async with served(http, _settings(gateway), sock, end_seconds=CLOSE_SECONDS) as server, beside(registrar.run()):
        yield base_url(server.sockets[0])


def _settings(gateway: Gateway) -> Admin:
    if gateway.config.admin is None:
        raise RuntimeError("an admin port is served that is not configured")
    return gateway.config.admin


async def _answer(context: AdminContext, guard: WriteGuard, request: BaseRequest) -> StreamResponse:
    """Answer one request. This is the handler that the server calls."""
    id, now = request_id(request.headers.get("x-request-id")), time.monotonic()
    target = origin_form(request.raw_path)
    record = Record(now, endpoint="admin")
    exchange = Exchange(request, id, record, target, introspection=True)
    answered = await answer(exchange, partial(_route, context), guard)
    fields = {"request_id": id, "method": request.method, "status": record.code}
    access.debug(record.endpoint, extra={"fields": fields})
    return answered


async def _route(context: AdminContext, exchange: Exchange) -> None:
    request, settings = exchange.request, _settings(context.gateway)
    if (wrong := refusal(request)) is not None:
        exchange.closing = True
        raise wrong
    path, upstream = exchange.target.partition("?")[0], ""
    refuse_pages(request.headers, settings)
    if path not in _OPEN:
        demand_token(request.headers, settings)
    served = _SERVED.get(path)
    if (found := _REPLICAS.fullmatch(path)) is not None:
        served, upstream = _OF_REPLICAS[found["act"]], unquote(found["upstream"])
        _demand_upstream(context, upstream)
    if served is None:
        raise unknown_url()
    serve = served.get("GET" if request.method == "HEAD" else request.method)
    if serve is None:
        raise wrong_method(served)
    await serve(context, exchange, upstream)


def _demand_upstream(context: AdminContext, name: str) -> None:
    """Raise ApiError 404 if an upstream is not configured. The built-in engine's upstream does not count."""
    names = [upstream.name for upstream in context.gateway.config.upstreams]
    if name not in names:
        there = ", ".join(names) or "none"
        message = f"The configuration has no such upstream; it has: {there}."
        raise invalid_request(message, code="upstream_not_found", status=404)
