"""From a request line to its handler. Paths are matched as received, before any decoding."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import unquote

from aiohttp import hdrs
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from nproxy.gateway import generate, introspect, models
from nproxy.gateway.app import App
from nproxy.gateway.callers import UNLIMITED
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.heads import origin_form, refusal
from nproxy.gateway.pages.site import PageFile
from nproxy.gateway.passthrough.handler import serve as pass_through
from nproxy.gateway.paths import passes
from nproxy.openai.errors import loop_detected, unknown_url, wrong_method

Serve = Callable[[App, Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What serves a path."""

    name: str
    """A label in metrics and logs; there are only a few."""
    serve: Serve
    """The handler."""
    methods: tuple[str, ...] = ()
    """The HTTP methods it accepts; empty for any."""
    introspection: bool = False
    """It asks about the gateway itself."""
    keyless: bool = False
    """It needs no key: process supervisors and browsers that load a page have none."""
    admits: bool = False
    """It needs permits, and tells the state of the caller's rates once it has them, or has failed."""

    def route(self, app: App, exchange: Exchange) -> Awaitable[None]:
        """Check the request, and return what serves it. Raises ApiError if it is refused."""
        request, record, edge = exchange.request, exchange.record, app.settings.edge
        headers = request.headers
        record.client = edge.client(request)
        origin = headers.get(hdrs.ORIGIN)
        exchange.cors = edge.cors.answer(origin)
        if (wrong := refusal(request)) is not None:
            exchange.closing = True
            raise wrong
        if (passed := headers.getall(hdrs.VIA, ())) and app.upstreams.pseudonym.among(passed):
            raise loop_detected()
        if request.method == hdrs.METH_OPTIONS and (preflight := edge.cors.preflight(headers)) is not None:
            record.endpoint = "preflight"
            return exchange.respond(204, b"", preflight)
        record.endpoint = self.name
        if not self.keyless:
            if origin is not None:  # a page's
                edge.refuse_other_pages(request)
            exchange.caller = caller = edge.caller(request, record.client)
            if caller.rates is not UNLIMITED and not self.admits:
                exchange.headers.update(app.admission.headers(caller))
        if self.methods and request.method not in self.methods:
            raise wrong_method(self.methods)
        return self.serve(app, exchange)


_GET = ("GET", "HEAD")
_MODEL = "/v1/models/"


async def _openapi(app: App, exchange: Exchange) -> None:
    await app.openapi.serve(exchange, app.config)


async def _one_model(app: App, exchange: Exchange) -> None:
    await models.one_model(app, exchange, unquote(exchange.path.removeprefix(_MODEL)))


async def _page(file: PageFile, app: App, exchange: Exchange) -> None:
    await app.site.serve(exchange, file)


async def _nothing(app: App, exchange: Exchange) -> None:
    meant = _meant(exchange.path)
    raise unknown_url() if meant is None else unknown_url(f"Unknown request path; did you mean {meant}?")


async def _on_the_admin_port(app: App, exchange: Exchange) -> None:
    raise unknown_url("This path is served on the admin port.")


_OWN: Mapping[str, Endpoint] = {
    "/v1/chat/completions": Endpoint("chat/completions", generate.chat, ("POST",), admits=True),
    "/v1/completions": Endpoint("completions", generate.completions, ("POST",), admits=True),
    "/v1/models": Endpoint("models", models.list_models, _GET),
    "/health": Endpoint("health", introspect.health, _GET, introspection=True, keyless=True),
    "/ready": Endpoint("ready", introspect.ready, _GET, introspection=True, keyless=True),
    "/metrics": Endpoint("metrics", introspect.metrics, _GET, introspection=True),
    "/status": Endpoint("status", introspect.status, _GET, introspection=True),
    "/openapi.json": Endpoint("openapi.json", _openapi, _GET, introspection=True, keyless=True),
}
"""nproxy's own endpoints by path. Metrics and status name models and callers, so they need a key."""

_ADMINS = {path: replace(_OWN[path], serve=_on_the_admin_port, methods=()) for path in ("/metrics", "/status")}
"""What replaces them if there is an admin port."""

_ONE_MODEL = Endpoint("models", _one_model, _GET)
_PASSED = Endpoint("passthrough", pass_through, admits=True)
_OTHER = Endpoint("other", _nothing)


def dispatch(app: App, request: BaseRequest) -> Awaitable[StreamResponse]:
    """Answer one request. This is the handler that the server calls."""
    target = origin_form(request.raw_path)
    endpoint = _endpoint(app, request.method, target.partition("?")[0])
    return app.handle(request, target, partial(endpoint.route, app), endpoint.introspection)


def _endpoint(app: App, method: str, path: str) -> Endpoint:
    """Return the endpoint of a path, whether or not the caller may use it.

    A path that a server could read as another path has no endpoint.
    """
    if (own := _OWN.get(path)) is not None:
        return _ADMINS.get(path, own) if app.settings.has_admin_port else own
    config = app.settings.config
    if (file := app.site.find(config.pages, method, path)) is not None:
        return Endpoint(file.page, partial(_page, file), introspection=True, keyless=True)
    if path.startswith(_MODEL) and path != _MODEL:
        found = _ONE_MODEL
    elif passes(config.passthrough, path):
        found = _PASSED
    else:
        return _OTHER
    return replace(found, serve=_nothing, methods=()) if _is_ambiguous(path) else found


def _meant(path: str) -> str | None:
    """Return nproxy's own path that the client probably meant, or None.

    It corrects usual mistakes in base URLs: something else than `/v1` before the path, or a slash at the end.
    """
    path = path.rstrip("/")
    return max((own for own in _OWN if path.endswith(own.removeprefix("/v1"))), key=len, default=None)


def _is_ambiguous(path: str) -> bool:
    """Whether an upstream might read a path differently: `//`, backslashes, control characters, encoded dots, or one of
    nproxy's own in other words, whose requests it counts.
    """
    decoded = unquote(unquote(path, errors="replace"), errors="replace")
    segments = decoded.split("/")
    suspicious = "//" in path or "\\" in decoded or any(ord(c) < 32 or ord(c) == 127 for c in decoded)
    own = decoded.rstrip("/").casefold() in _OWN
    return not path.startswith("/") or suspicious or own or "." in segments or ".." in segments
