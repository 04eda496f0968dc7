"""Sends a request to an upstream as it came, with any method, and its answer to the client as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from functools import partial

from aiohttp import hdrs
from multidict import CIMultiDict

from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.failure_table import KEY_REFUSED
from nproxy.choices.failures import as_error, upstreams_own
from nproxy.gateway.admission.grant import Grant
from nproxy.gateway.admission.guess import BYTES_PER_TOKEN
from nproxy.gateway.app import App
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.fallback import Fallbacks, RoutedRequest
from nproxy.gateway.passthrough.retries import Retries
from nproxy.gateway.passthrough.upload import PassedBody, open_upload
from nproxy.gateway.response_writer import ClientLeft
from nproxy.gateway.tracing import TRACE_HEADERS
from nproxy.openai.errors import invalid_request, model_not_found
from nproxy.openai.passed_usage import PassedUsage
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.client import ERROR_BODY_SECONDS, MAX_ERROR_BODY
from nproxy.upstreams.failures import redirected
from nproxy.upstreams.forward import Answer, ForwardError
from nproxy.upstreams.headers import downward, upward
from nproxy.upstreams.models import ModelName
from nproxy.upstreams.routes import Route
from nproxy.upstreams.upstream import Upstream

NOT_MODIFIED = 304
"""The only one of the 3xx that leads to no other place."""
_NO_PAGE = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}
"""Headers with which a browser runs no script of an upstream in the gateway's name."""


async def serve(app: App, exchange: Exchange) -> None:
    """Send the request to an upstream and its answer to the client. Raises ApiError if no answer has begun."""
    record = exchange.record
    with app.admission.guard(exchange.caller) as reservation:
        upload, model = await open_upload(app, exchange, reservation)
        upload.uncompressed = exchange.caller.rates.tokens is not None
        fallbacks = Fallbacks(app, await _route(app, model), model, partial(RoutedRequest, choices=1))
        routed = fallbacks.begin() or await fallbacks.elsewhere()
        admission, first = app.admission, routed.upstream.name
        with await admission.admit(exchange.caller, first, routed.choices, waited=record.waited) as grant:
            exchange.headers.update(admission.headers(exchange.caller))
            following: RoutedRequest | None = routed
            while following is not None:
                name, upstream = following.route.name, following.upstream
                record.mode, record.upstream = "passthrough", upstream.name
                if name.shown:
                    record.model = app.metrics.model_label(name.shown, upstream.name, listed=name.listed)
                following = await _serve(app, exchange, following.route, upload, fallbacks, grant)


async def _serve(
    app: App, exchange: Exchange, route: Route, upload: PassedBody, fallbacks: Fallbacks[RoutedRequest], grant: Grant
) -> RoutedRequest | None:
    """Serve the request from one upstream.

    Returns the request for the next upstream if this one failed before an answer to the client began; None if it is
    done.
    """
    usage = PassedUsage()
    try:
        unserved = await _ask(app, exchange, route, upload, usage, fallback_possible=fallbacks.fallback_possible)
    finally:
        if usage.found:
            # the last counts of a stream that broke off, at either end, may be those of its beginning
            whole = exchange.record.outcome == "ok"
            completion = usage.completion if whole else max(usage.completion, usage.events)
            exchange.record.prompt_tokens, exchange.record.completion_tokens = usage.prompt, completion
            grant.spend(usage.prompt, completion)
        elif usage.events:
            grant.spent_at_least(len(upload.known) // BYTES_PER_TOKEN + usage.events)
    if unserved is None:
        return None
    # the replica has been left, so that others may use it while this request waits for the next upstream
    if _may_go_on(unserved.failure, upload) and (following := await fallbacks.after(grant)) is not None:
        return following
    exchange.record.outcome = unserved.failure.kind
    if unserved.answer is None:
        raise as_error([unserved.failure], retries_spent=False)
    await _send_back(exchange, unserved.answer)
    return None


@dataclass(slots=True)
class _Unserved:
    """An upstream has not served the request, and the client was sent nothing yet."""

    failure: Failure
    """What failed."""
    answer: Answer | None = None
    """The upstream's own answer to it; None if there is none that can still be sent."""


async def _ask(
    app: App, exchange: Exchange, route: Route, upload: PassedBody, usage: PassedUsage, *, fallback_possible: bool
) -> _Unserved | None:
    """Ask one upstream, again if retries allow it, and send its answer to the client: then None is returned.

    usage: gets what is sent. fallback_possible: another upstream may be asked, so a refusal is not sent yet if that one
    may do better.
    """
    record, upstream = exchange.record, route.upstream
    group, retries = CallGroup(route.model, assigned=record.assigned), Retries(upstream)
    exchange.headers["x-nproxy-upstream"] = upstream.name
    headers = _headers_up(exchange, route, upload)
    method, target = exchange.request.method, exchange.target
    while True:
        try:
            with record.forwarding(method) as trace:
                headers.update(trace)
                async with upstream.pass_on(group, method, target, headers, upload.data(route.name)) as answer:
                    record.forwarded(answer.status)
                    refusal = _refusal(upstream, answer.status)
                    if refusal is not None and _is_withheld(refusal):
                        return _Unserved(refusal)
                    if refusal is None or not (fallback_possible and _may_go_on(refusal, upload)):
                        await _send_back(exchange, answer, usage)
                        record.outcome = "ok" if refusal is None else refusal.kind
                        return None
                    return _Unserved(refusal, await _kept(answer))
        except ForwardError as error:
            if error.failure.unmade:
                app.metrics.refused("calls").inc()
            if exchange.response is not None:
                if upload.error is not None:
                    raise ClientLeft from None
                record.outcome = error.failure.kind
                exchange.abort()  # an answer that was cut must not look complete
                return None
            if upload.error is not None:
                raise upload.error from None
            if upload.used or not retries.another(error.failure):
                return _Unserved(error.failure)


def _refusal(upstream: Upstream, status: int) -> Failure | None:
    """Return what the status of an answer says about the upstream; None if it may be passed on as no error."""
    if 300 <= status < 400 and status != NOT_MODIFIED:
        return redirected()
    if status < 400:
        return None
    return Failure(FailureKind.STATUS, "It refused.", status=status, own_key=upstream.own_key)


def _is_withheld(refusal: Failure) -> bool:
    """Whether the client gets an error of nproxy's own instead: for redirects, and if nproxy's own key is refused."""
    return refusal.kind is FailureKind.MALFORMED or (refusal.own_key and refusal.status in KEY_REFUSED)


def _may_go_on(failure: Failure, upload: PassedBody) -> bool:
    """Whether another upstream may get the request: this one is at fault, and the body can be sent again."""
    return not upload.used and upstreams_own(failure)


async def _kept(refusal: Answer) -> Answer | None:
    """Read a refusal, so that it can still be sent when its connection is used for other requests.

    None if it does not come whole, within limits of size and time.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(ERROR_BODY_SECONDS):
            async for data in refusal.chunks:
                body += data
                if len(body) > MAX_ERROR_BODY:
                    return None
    except (ForwardError, TimeoutError):
        return None
    return replace(refusal, chunks=_once(bytes(body)))


async def _once(data: bytes) -> AsyncGenerator[bytes]:
    if data:
        yield data


async def _send_back(exchange: Exchange, answer: Answer, usage: PassedUsage | None = None) -> None:
    """Send an answer as it comes. usage: gets its bytes if they may hold token counts."""
    if not _may_report_usage(answer):
        usage = None
    headers = downward(answer.headers)
    headers.update(_NO_PAGE)
    length = answer.headers.get(hdrs.CONTENT_LENGTH)
    exchange.begin(answer.status, headers, length=int(length) if length is not None else None)
    exchange.flush_head()  # the body may come much later
    if exchange.request.method != "HEAD":
        async for data in answer.chunks:
            if usage is not None:
                usage.feed(data)
            await exchange.write(data)
    await exchange.finish()


def _may_report_usage(answer: Answer) -> bool:
    kind = answer.headers.get(hdrs.CONTENT_TYPE, "").lower()
    return ("json" in kind or "event-stream" in kind) and hdrs.CONTENT_ENCODING not in answer.headers


async def _route(app: App, model: str | None) -> Route:
    """Return the upstream for the model that the body names, else the configured one, else the only one.

    Raises ApiError if there is none of these, and none that may have any model.
    """
    upstreams, unknown = app.upstreams, ModelName(model or "")
    if model is not None and (known := await upstreams.find(model)) is not None:
        return known
    if app.config.passthrough.upstream is not None:
        return Route(upstreams.by_name[app.config.passthrough.upstream], unknown)
    if len(upstreams.all) == 1:
        return Route(upstreams.all[0], unknown)
    if model is None:
        raise invalid_request("The request names no model, and no upstream is configured for this path.", param="model")
    for upstream in upstreams.all:
        if upstream.models.takes_any():
            return Route(upstream, unknown)
    raise model_not_found(model)


def _headers_up(exchange: Exchange, route: Route, upload: PassedBody) -> CIMultiDict[str]:
    request, upstream = exchange.request, route.upstream
    caller = upstream.caller_shown(exchange.caller.name)
    headers = upward(request.headers, upstream.api_key, drop=TRACE_HEADERS, caller=caller)
    headers["X-Request-Id"] = exchange.id
    if upload.uncompressed:
        headers[hdrs.ACCEPT_ENCODING] = "identity"
    if upload.rest is not None and hdrs.CONTENT_LENGTH in request.headers:
        headers[hdrs.CONTENT_LENGTH] = str(int(request.headers[hdrs.CONTENT_LENGTH]) + upload.grown(route.name))
    return headers
