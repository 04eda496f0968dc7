"""The two endpoints that nproxy understands: chat completions and legacy completions."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from functools import partial
from math import inf

from multidict import CIMultiDict

from nproxy.choices.capability import Capability
from nproxy.choices.commands import OpenLeg
from nproxy.choices.compose import asked_as_stream, compose
from nproxy.choices.conduct import Conduct
from nproxy.choices.events import Event
from nproxy.choices.plan import Plan, Request, make_plan
from nproxy.choices.settings import ConductSettings
from nproxy.gateway.admission.guess import guess
from nproxy.gateway.admission.memory import Hold
from nproxy.gateway.app import App
from nproxy.gateway.bodies import read_body
from nproxy.gateway.driver import Drive
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.observe import Observer
from nproxy.gateway.request_id import leg_id
from nproxy.openai.body import Body
from nproxy.openai.dialect import Dialect
from nproxy.openai.requests import Limits, parse_chat, parse_completion
from nproxy.upstreams.affinity import prompt_hash
from nproxy.upstreams.client import Call
from nproxy.upstreams.headers import upward
from nproxy.upstreams.kin import Kin
from nproxy.upstreams.upstream import Upstream

Parse = Callable[[Body, Limits, str | None], Request]

_PATHS = {Dialect.CHAT: "/chat/completions", Dialect.COMPLETIONS: "/completions"}
_ID_PREFIXES = {Dialect.CHAT: "chatcmpl-", Dialect.COMPLETIONS: "cmpl-"}
_WRITTEN_ANEW = ("content-type", "content-encoding", "accept-encoding", "x-request-id", "idempotency-key")


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
    raw = await read_body(exchange.request, app.body_limit, reach=hold.reach)
    body = await app.aside.by_size(len(raw), Body.parse, raw)
    default_model = await app.upstreams.unnamed() if body.fields.get("model") is None else None
    return await app.aside.by_size(len(raw), parse, body, app.limits, default_model)


async def _generate(app: App, exchange: Exchange, request: Request) -> None:
    """Plan the request and drive it to its end. Everything that is the request's fault is raised before any call."""
    exchange.demand_model(request.model)
    upstream, name = await app.upstreams.route(request.model)
    exchange.upstream = upstream.name
    exchange.model = app.metrics.model_label(name.shown, upstream.name, listed=name.listed)
    capability = upstream.capabilities.snapshot(name.shown, name.upstream)
    plan = make_plan(request, capability, _draw, app.config.n_policy.greedy)
    choices = request.prompts * plan.n
    async with app.desk.admitted(exchange.caller, upstream.name, choices, guess(request, choices)) as grant:
        exchange.headers.update(app.desk.headers(exchange.caller))
        exchange.mode, exchange.choices = plan.mode, request.choices
        exchange.headers["x-nproxy-mode"] = plan.mode
        exchange.headers["x-nproxy-legs"] = str(len(plan.legs))
        exchange.headers["x-nproxy-upstream"] = upstream.name
        conduct = Conduct(
            request,
            plan,
            capability,
            _settings(app, upstream, request),
            budget=upstream.budget.take,
            jitter=random.random,
            draw=_draw,
        )
        observer = Observer(app.metrics, upstream.name, exchange.model, exchange.started, grant.spend)
        legs = _Legs(exchange, upstream, request, plan, capability, name.upstream or name.shown)
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
            if exchange.code >= 400:
                grant.nothing_came()


class _Legs:
    """The upstream calls of one request: what they share is made once."""

    def __init__(
        self,
        exchange: Exchange,
        upstream: Upstream,
        request: Request,
        plan: Plan,
        capability: Capability,
        model: str,
    ) -> None:
        headers = exchange.request.headers
        self._id = exchange.id
        self._idempotency_key = headers.get("idempotency-key")
        self._upstream = upstream
        self._request = request
        self._n = plan.n
        self._capability = capability
        affine = upstream.settings.balance == "prefix_affinity"
        self.kin = Kin(model, together=capability.prefix_cache, prompt=prompt_hash(request) if affine else None)
        caller = upstream.caller_shown(exchange.caller.name)
        self._shared = upward(headers, upstream.settings.api_key, drop=_WRITTEN_ANEW, caller=caller)
        self._shared["Content-Type"] = "application/json"
        self._shared["Accept-Encoding"] = "identity"

    def open(self, command: OpenLeg) -> AsyncGenerator[list[Event]]:
        """Start the call of one leg; a retry has another request id and the same idempotency key."""
        leg = command.leg
        offset = leg.client_index(0, self._n)
        headers = CIMultiDict(self._shared)
        if self._capability.request_id and "request_id" not in leg.omit:
            headers["X-Request-Id"] = leg_id(self._id, offset, command.attempt)
        if self._idempotency_key is not None:
            headers["Idempotency-Key"] = f"{self._idempotency_key}-{offset}"
        call = Call(
            leg=leg.number,
            path=_PATHS[self._request.dialect],
            headers=headers,
            body=compose(self._request, self._capability, leg),
            streamed=asked_as_stream(self._request, self._capability, leg),
            own_key=self._upstream.own_key,
            choices=leg.choices(self._request.prompts),
        )
        return self._upstream.call(call, self.kin, alone=command.alone)


def _settings(app: App, upstream: Upstream, request: Request) -> ConductSettings:
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
    )


def _draw() -> int:
    """A random seed that every server can hold."""
    return random.getrandbits(31)
