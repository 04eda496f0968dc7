"""From a request line to what serves it. Paths are judged as they came, before anything decodes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import unquote

from aiohttp import hdrs
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from nproxy.config import Passthrough
from nproxy.gateway import generate, introspect, models, passthrough
from nproxy.gateway.app import App
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.heads import origin_form, refusal
from nproxy.gateway.paths import passes
from nproxy.openai.errors import unknown_url, wrong_method

Serve = Callable[[App, Exchange], Awaitable[None]]


async def _openapi(app: App, exchange: Exchange) -> None:
    await app.openapi.serve(exchange, app.config)


_GET = ("GET", "HEAD")

_OWN: Mapping[str, tuple[tuple[str, ...], Serve]] = {
    "/v1/chat/completions": (("POST",), generate.chat),
    "/v1/completions": (("POST",), generate.completions),
    "/v1/models": (_GET, models.list_models),
    "/health": (_GET, introspect.health),
    "/ready": (_GET, introspect.ready),
    "/metrics": (_GET, introspect.metrics),
    "/status": (_GET, introspect.status),
    "/openapi.json": (_GET, _openapi),
}

_INTROSPECTION = frozenset({"/health", "/ready", "/metrics", "/status", "/openapi.json"})

_OPEN = frozenset({"/health", "/ready", "/openapi.json"})
"""Shown without a key: who looks after processes has none, nor has a page. Metrics and status tell models and callers,
and need one."""

_ADMINS = frozenset({"/metrics", "/status"})
"""Not here where there is an admin port."""

_MODEL = "/v1/models/"


async def dispatch(app: App, request: BaseRequest) -> StreamResponse:
    """Answer one request: the handler that the server calls."""
    target = origin_form(request.raw_path)
    path = _path_of(target)
    introspection = path in _INTROSPECTION or app.site.find(app.config.pages, request.method, path) is not None
    return await app.handle(request, target, _route, introspection=introspection)


async def _route(app: App, exchange: Exchange) -> None:
    request, edge = exchange.request, app.edge
    exchange.client = edge.client(request)
    exchange.cors = edge.cors.answer(request.headers.get(hdrs.ORIGIN))
    if (wrong := refusal(request)) is not None:
        exchange.closing = True
        raise wrong
    path = _path_of(exchange.target)
    exchange.endpoint = _endpoint(app.config.passthrough, path)
    if (preflight := edge.cors.preflight(request.method, request.headers)) is not None:
        exchange.endpoint = "preflight"
        await exchange.respond(204, b"", preflight)
        return
    if (place := app.site.find(app.config.pages, request.method, path)) is not None:
        exchange.endpoint = place.page
        await app.site.serve(exchange, place)
        return
    if path not in _OPEN:
        exchange.caller = edge.caller(request, exchange.client)
        exchange.headers.update(app.desk.headers(exchange.caller))
    own = _OWN.get(path)
    if path in _ADMINS and app.config.admin is not None:
        raise unknown_url("It is served on the admin port.")
    if own is not None:
        methods, serve = own
        _check_method(request, methods)
        await serve(app, exchange)
        return
    _refuse_escapes(path)
    if path.startswith(_MODEL):
        _check_method(request, _GET)
        await models.one_model(app, exchange, unquote(path.removeprefix(_MODEL)))
        return
    if not passes(app.config.passthrough, path):
        raise unknown_url()
    await passthrough.serve(app, exchange)


def _endpoint(settings: Passthrough, path: str) -> str:
    """What a path is called in metrics and logs, whether or not it may be asked for: one of a few names."""
    if path in _OWN:
        return path.removeprefix("/v1").removeprefix("/")
    if path.startswith(_MODEL):
        return "models"
    return "passthrough" if passes(settings, path) else "other"


def _path_of(target: str) -> str:
    return target.partition("?")[0]


def _check_method(request: BaseRequest, methods: tuple[str, ...]) -> None:
    if request.method not in methods:
        raise wrong_method(methods)


def _refuse_escapes(path: str) -> None:
    """Refuse paths that an upstream might read as another path than we do: `//`, dot segments however encoded."""
    decoded = unquote(unquote(path, errors="replace"), errors="replace")
    segments = decoded.split("/")
    suspicious = "//" in path or "\\" in decoded or any(ord(c) < 32 or ord(c) == 127 for c in decoded)
    if not path.startswith("/") or suspicious or "." in segments or ".." in segments:
        raise unknown_url()
