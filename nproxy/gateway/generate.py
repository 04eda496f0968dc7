"""The two endpoints that nproxy understands: chat completions and legacy completions."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf

from nproxy.choices.commands import FallBack
from nproxy.choices.conduct import Conduct
from nproxy.choices.plan import Request, make_plan
from nproxy.choices.settings import ConductSettings
from nproxy.gateway.admission.desk import Grant
from nproxy.gateway.admission.guess import guess, guess_prompt
from nproxy.gateway.admission.memory import Hold
from nproxy.gateway.app import App
from nproxy.gateway.bodies import parsed, read_body
from nproxy.gateway.driver import Drive
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.legs import Attempt, Legs
from nproxy.gateway.observe import Observer
from nproxy.openai.body import Body
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import ApiError
from nproxy.openai.requests import Limits, parse_chat, parse_completion
from nproxy.upstreams.routes import Route, Routes
from nproxy.upstreams.upstream import Upstream

Parse = Callable[[Body, Limits, str | None], Request]

_ID_PREFIXES = {Dialect.CHAT: "chatcmpl-", Dialect.COMPLETIONS: "cmpl-"}


async def chat(app: App, exchange: Exchange) -> None:
    """POST /v1/chat/completions."""
    await _answer(app, exchange, parse_chat)


async def completions(app: App, exchange: Exchange) -> None:
    """POST /v1/completions."""
    await _answer(app, exchange, parse_completion)


async def _answer(app: App, exchange: Exchange, parse: Parse) -> None:
    with app.desk.door(exchange.caller) as hold:
        await _generate(app, exchange, await _read(app, exchange, parse, hold))


async def _read(app: App, exchange: Exchange, parse: Parse, hold: Hold) -> Request:
    """Read the body and what it asks for. Raises ApiError for what is wrong with either."""
    raw = await read_body(exchange.request, app.body_limit, hold=hold)
    body = await parsed(raw, app.aside, app.desk.check_memory)
    default_model = await app.upstreams.unnamed() if body.fields.get("model") is None else None
    return await app.aside.by_size(len(raw), parse, body, app.limits, default_model)


async def _generate(app: App, exchange: Exchange, request: Request) -> None:
    """Plan the request and drive it to its end. Everything that is the request's fault is raised before any call."""
    exchange.demand_model(request.model, request.body.fields)
    first = await app.upstreams.route(request.model)
    routes = app.upstreams.routes(first, request.model)
    attempt = await _first(app, request, routes, first)
    if attempt.upstream is not first.upstream:
        app.metrics.fallbacks(first.upstream.name, attempt.upstream.name).inc()
    exchange.choices, choices = request.choices, request.prompts * attempt.plan.n
    async with app.desk.admitted(exchange.caller, attempt.upstream.name, choices, guess(request, choices)) as grant:
        exchange.headers.update(app.desk.headers(exchange.caller))
        grant.came(guess_prompt(request))
        chain = bool(first.upstream.settings.fallback)
        try:
            while (fell_back := await _drive(app, exchange, request, attempt, grant, chain=chain)) is not None:
                if (following := await _next(app, request, routes, grant)) is None:
                    await _tell(exchange, fell_back)
                    return
                app.metrics.fallbacks(attempt.upstream.name, following.upstream.name).inc()
                attempt = following
        finally:
            if exchange.code >= 400:
                grant.nothing_came()


async def _tell(exchange: Exchange, fell_back: FallBack) -> None:
    """Tell what went wrong, as there is no other upstream to ask."""
    told = fell_back.instead
    exchange.outcome = fell_back.kinds[0]
    exchange.headers.update(told.headers)
    await exchange.respond(told.status, told.body)


def _planned(app: App, request: Request, route: Route) -> Attempt:
    """Plan the request for one upstream. Raises ApiError where that one cannot do what it asks for."""
    capability = route.upstream.capabilities.snapshot(route.name.shown, route.name.upstream)
    greedy, replayed = app.config.n_policy.greedy, route.upstream.settings.resume == "replay"
    return Attempt(route, capability, make_plan(request, capability, _draw, greedy, replayed=replayed))


async def _first(app: App, request: Request, routes: Routes, first: Route) -> Attempt:
    """Plan the request for the upstream that has its model; if that one is not in order, for the next that can take it.

    The client is never told that its request is wrong by one that it did not ask.
    """
    while (route := await routes.next()) is not None and route.upstream is not first.upstream:
        with suppress(ApiError):
            attempt = _planned(app, request, route)
            if request.prompts * attempt.plan.n <= route.upstream.settings.max_inflight:
                return attempt
    return _planned(app, request, first)


async def _next(app: App, request: Request, routes: Routes, grant: Grant) -> Attempt | None:
    """Plan the request for the next upstream that can do what it asks for and has room; None where there is none."""
    while (route := await routes.next()) is not None:
        with suppress(ApiError):
            attempt = _planned(app, request, route)
            await grant.move(attempt.upstream.name)
            return attempt
    return None


async def _drive(
    app: App, exchange: Exchange, request: Request, attempt: Attempt, grant: Grant, *, chain: bool
) -> FallBack | None:
    """Drive the request at one upstream; gives why where the client has nothing, and another one is to be asked.

    chain: there may be another one.
    """
    upstream, name, plan = attempt.upstream, attempt.route.name, attempt.plan
    exchange.upstream, exchange.mode = upstream.name, plan.mode
    exchange.model = app.metrics.model_label(name.shown, upstream.name, listed=name.listed)
    exchange.headers["x-nproxy-mode"] = plan.mode
    exchange.headers["x-nproxy-legs"] = str(len(plan.legs))
    exchange.headers["x-nproxy-upstream"] = upstream.name
    conduct = Conduct(
        request,
        plan,
        attempt.capability,
        _settings(app, upstream, request, chain=chain),
        budget=upstream.budget.take,
        jitter=random.random,
        draw=_draw,
    )
    observer = Observer(app.metrics, upstream.name, exchange.model, exchange.started, grant)
    legs = Legs(exchange, request, attempt)
    drive = Drive(
        exchange,
        conduct,
        observer,
        open_call=legs.open,
        learn=partial(app.learn, upstream, name.shown),
        judge=partial(upstream.judge, legs.kin),
    )
    app.drives.add(drive)
    try:
        await drive.run()
    finally:
        app.drives.discard(drive)
        observer.ended(request.choices)
    return drive.fell_back


def _settings(app: App, upstream: Upstream, request: Request, *, chain: bool) -> ConductSettings:
    stream = app.config.stream
    return ConductSettings(
        id=_ID_PREFIXES[request.dialect] + uuid.uuid4().hex,
        created=int(time.time()),
        shown_model=request.model,
        retries_per_leg=upstream.settings.retries.per_leg,
        resume=upstream.settings.resume,
        chat_continues=upstream.settings.chat_continues,
        ping_seconds=inf if stream.ping_seconds is None else stream.ping_seconds,
        partial=app.config.n_policy.on_leg_failure == "partial",
        headers_after_seconds=inf if stream.headers_after_seconds is None else stream.headers_after_seconds,
        fallback=chain,
    )


def _draw() -> int:
    """A random seed that every server can hold."""
    return random.getrandbits(31)
