"""Handlers of the two endpoints whose requests nproxy understands: chat completions and legacy completions."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from functools import partial

from nproxy.choices.commands import WITHOUT_ERROR
from nproxy.choices.conduct import Conduct
from nproxy.choices.plan import make_plan
from nproxy.choices.settings import Names
from nproxy.gateway.admission.grant import Grant
from nproxy.gateway.admission.guess import guess, guess_prompt
from nproxy.gateway.app import App
from nproxy.gateway.bodies import body_at_hand, parsed, read_body
from nproxy.gateway.callers import UNLIMITED
from nproxy.gateway.driver import Drive
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.fallback import Fallbacks
from nproxy.gateway.observe import Observer
from nproxy.gateway.pings import pinged
from nproxy.gateway.request_settings import RequestSettings
from nproxy.gateway.response_writer import ClientLeft
from nproxy.gateway.upstream_calls import PlannedRequest, UpstreamCalls
from nproxy.openai.body import LONG, Body
from nproxy.openai.requests import Limits, Request, parse_chat, parse_completion
from nproxy.upstreams.routes import Route

Parse = Callable[[Body, Limits, str | None], Request]


def chat(app: App, exchange: Exchange) -> Awaitable[None]:
    """POST /v1/chat/completions."""
    return _answer(app, exchange, parse_chat)


def completions(app: App, exchange: Exchange) -> Awaitable[None]:
    """POST /v1/completions."""
    return _answer(app, exchange, parse_completion)


async def _answer(app: App, exchange: Exchange, parse: Parse) -> None:
    """Read the body, parse the request, and generate. Raises ApiError if body or request are invalid."""
    settings, check, bucket = app.settings, app.admission.check_memory, exchange.caller.bucket
    with app.admission.guard(exchange.caller) as reservation:
        raw = body_at_hand(exchange.request, settings.body_limit, reservation)
        if raw is None:
            raw = await read_body(exchange.request, settings.body_limit, reservation=reservation)
            check()  # others may have come meanwhile
        here = len(raw) < LONG
        body = Body.parse(raw) if here else await app.offload.run(bucket, parsed, raw, check)
        default_model = await app.upstreams.unnamed() if body.fields.get("model") is None else None
        if here:
            request = parse(body, settings.limits, default_model)
        else:
            request = await app.offload.run(bucket, parse, body, settings.limits, default_model)
        await _generate(app, settings, exchange, request)


async def _generate(app: App, settings: RequestSettings, exchange: Exchange, request: Request) -> None:
    """Plan the request and drive it to its end. Errors in the request itself are raised before any upstream call."""
    admission, caller, record = app.admission, exchange.caller, exchange.record
    record.asked(request)
    caller.demand_model(request.model, request.body.fields)
    first = app.upstreams.at_hand(request.model) or await app.upstreams.route(request.model)
    fallbacks = Fallbacks(app, first, request.model, partial(_planned, settings, request))
    planned = fallbacks.begin() or await fallbacks.elsewhere()
    upstream, choices = planned.route.upstream.name, planned.choices
    counted = caller.rates.tokens is not None
    tokens = guess(request, choices) if counted else 0
    field = "best_of" if request.drawn > request.n else "n"
    with await admission.admit(caller, upstream, choices, tokens, field=field, waited=record.waited) as grant:
        if caller.rates is not UNLIMITED:
            exchange.headers.update(admission.headers(caller))
        if counted:
            grant.spent_at_least(guess_prompt(request))
        try:
            while True:
                drive = _drive(app, settings, exchange, request, planned, grant, fallbacks)
                await drive.run()
                if drive.fell_back is None:
                    return
                async with pinged(exchange, settings.config.stream.ping_seconds):
                    following = await fallbacks.after(grant)
                if following is None:
                    await drive.fail(drive.fell_back)
                    return
                planned = following
        except ClientLeft:
            raise
        except Exception:  # an internal error; the record may have no status yet
            if exchange.response is None:
                grant.nothing_came()
            else:
                grant.broke_off()
            raise
        finally:
            if record.code >= 400:
                grant.nothing_came()
            elif record.outcome not in WITHOUT_ERROR:
                grant.broke_off()


def _planned(settings: RequestSettings, request: Request, route: Route) -> PlannedRequest:
    """Plan the request for one upstream. Raises ApiError if that upstream cannot do what the request asks for."""
    capability = route.upstream.capabilities.snapshot(route.name.shown, route.name.upstream)
    plan = make_plan(request, capability, _draw, settings.greedy, replayed=route.upstream.replays)
    return PlannedRequest(route, request.prompts * plan.n, capability, plan)


def _drive(
    app: App,
    settings: RequestSettings,
    exchange: Exchange,
    request: Request,
    planned: PlannedRequest,
    grant: Grant,
    fallbacks: Fallbacks[PlannedRequest],
) -> Drive:
    """Prepare to drive the request at one upstream. When it has run, the drive says whether to ask another."""
    record, upstream, name, plan = exchange.record, planned.route.upstream, planned.route.name, planned.plan
    fallback_possible, fallback_available = fallbacks.fallback_possible, fallbacks.fallback_available
    record.upstream = upstream.name
    record.model = app.metrics.model_label(name.shown, upstream.name, listed=name.listed)
    exchange.shows(plan.way)
    exchange.headers["x-nproxy-upstream"] = upstream.name
    conduct = Conduct(
        request,
        plan,
        planned.capability,
        settings.conduct(upstream, fallback_possible=fallback_possible, fallback_available=fallback_available),
        Names(f"{request.dialect.id_prefix}{random.getrandbits(128):032x}", int(time.time()), request.model),
        upstream.budget.take,
        random.random,
        _draw,
        exchange.response is not None,
    )
    if (spans := record.tracing.spans) is not None:
        spans.to_upstream(upstream.name, name.upstream or name.shown, plan.n)
    calls = UpstreamCalls(exchange, request, planned, fallback_available)
    observer = Observer(app.metrics, record, grant, partial(upstream.count, calls.group))
    learn, judge = partial(app.learn, upstream, name.shown), partial(upstream.judge, calls.group)
    return Drive(exchange, conduct, observer, calls.open, learn, judge, app.drives)


def _draw() -> int:
    """Return a random seed that every server can hold: 31 bits."""
    return random.getrandbits(31)
