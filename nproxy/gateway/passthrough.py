"""Endpoints that go to an upstream as they are: any method, streamed both ways, not understood."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from aiohttp import hdrs
from aiohttp.web_request import BaseRequest
from multidict import CIMultiDict

from nproxy.choices.events import NOT_REACHED, Failure, FailureKind
from nproxy.choices.failures import as_error, upstreams_own
from nproxy.gateway import forms
from nproxy.gateway.admission.memory import MemoryReservation
from nproxy.gateway.app import App
from nproxy.gateway.bodies import chunks, parsed, read_body
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.fallback import Attempt, Fallbacks
from nproxy.gateway.tracing import TRACE_HEADERS
from nproxy.openai.body import LONG, Body
from nproxy.openai.errors import (
    ApiError,
    invalid_request,
    model_not_found,
)
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.forward import Answer, ForwardError
from nproxy.upstreams.headers import downward, upward
from nproxy.upstreams.models import ModelName
from nproxy.upstreams.routes import Route
from nproxy.upstreams.upstream import Upstream

Following = Callable[[], Awaitable[Attempt | None]]
"""Gives the next upstream to ask, None for no other."""

_UNSERVED = NOT_REACHED | {FailureKind.DOWN}
"""Nothing can have been done with the request."""

_SAID_OF_JSON = ("application/x-www-form-urlencoded", "text/plain")
PEEK_BYTES = 64 << 10
"""How far into a multipart body the model is looked for."""


@dataclass(slots=True)
class _Upload:
    """The body on its way up: what was read to find the model, and the rest as it comes.

    body: it whole and understood, where it had to be. used: what cannot be sent again has begun to go up. error: what
    ended it, when it was the client's doing.
    """

    known: bytes
    rest: AsyncGenerator[bytes] | None
    body: Body | None = None
    error: ApiError | None = None
    used: bool = False

    def data(self, name: ModelName) -> bytes | AsyncGenerator[bytes] | None:
        """What is sent to an upstream, which knows the model by this name."""
        if self.rest is not None:
            return self._stream(self.rest)
        if self.body is not None and name.upstream is not None:
            return bytes(self.body.splice({"model": name.upstream}))
        return self.known or None

    async def _stream(self, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        self.used = True
        if self.known:
            yield self.known
        try:
            async for data in rest:
                yield data
        except ApiError as error:
            self.error = error
            raise


async def serve(app: App, exchange: Exchange) -> None:
    """Send the request on and the answer back. Raises ApiError where no answer has begun."""
    with app.admission.guard(exchange.caller) as reservation:
        upload, model = await _open_upload(app, exchange, reservation)
        fallbacks = Fallbacks(app, await _route(app, model), model, partial(Attempt, choices=1))
        attempt = await fallbacks.begin()
        permits = app.admission.admit(exchange.caller, attempt.upstream.name, attempt.choices)
        with await exchange.admitted(permits) as grant:
            exchange.headers.update(app.admission.headers(exchange.caller))
            following: Attempt | None = attempt
            while following is not None:
                if (name := following.route.name).shown:
                    exchange.model = app.metrics.model_label(name.shown, following.upstream.name, listed=name.listed)
                following = await _serve(exchange, following.route, upload, partial(fallbacks.after, grant))


async def _serve(exchange: Exchange, route: Route, upload: _Upload, following: Following) -> Attempt | None:
    """Ask one upstream; gives what follows where it failed and nothing was begun, None where all is done."""
    upstream, group = route.upstream, CallGroup(route.called, placed=exchange.placed)
    retries = _Retries(upstream)
    exchange.upstream, exchange.mode = upstream.name, "passthrough"
    exchange.headers["x-nproxy-upstream"] = upstream.name
    headers = _headers_up(exchange, upstream, upload)
    method, target = exchange.request.method, exchange.target
    while True:
        try:
            with exchange.forwarding() as trace:
                headers.update(trace)
                async with upstream.pass_on(group, method, target, headers, upload.data(route.name)) as answer:
                    exchange.outcome = ""  # of an attempt before it, perhaps
                    exchange.forwarded(answer.status)
                    refusal = Failure(FailureKind.STATUS, "It refused.", status=answer.status, own_key=upstream.own_key)
                    if (attempt := await _elsewhere(refusal, upload, following)) is None:
                        await _send_back(exchange, answer)
                        exchange.outcome = "ok" if answer.status < 400 else FailureKind.STATUS
                    return attempt
        except ForwardError as error:
            exchange.outcome = error.failure.kind
            if exchange.response is not None:
                exchange.abort()  # a cut answer must not look complete
                return None
            if not upload.used and retries.another(error.failure):
                continue
            if (attempt := await _elsewhere(error.failure, upload, following)) is None:
                raise upload.error or as_error([error.failure], retries_spent=False) from None
            return attempt


async def _elsewhere(failure: Failure, upload: _Upload, following: Following) -> Attempt | None:
    """Where a request goes that failed so, if anywhere."""
    return None if upload.used or not upstreams_own(failure) else await following()


class _Retries:
    """Attempts at one upstream, with the body still here: one is free where nothing was answered on a closing socket.

    Others are where nothing can have been done with the request: no connection came about, or the server stood still.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._budget = upstream.budget
        self._left = upstream.settings.retries.per_leg
        self._free = True

    def another(self, failure: Failure) -> bool:
        """Take another attempt, where there is one."""
        if failure.kind is FailureKind.STALE and self._free:
            self._free = False
            return True
        if failure.kind not in _UNSERVED or not self._left or not self._budget.take():
            return False
        self._left -= 1
        return True


async def _send_back(exchange: Exchange, answer: Answer) -> None:
    headers = downward(answer.headers)
    length = answer.headers.get(hdrs.CONTENT_LENGTH)
    exchange.begin(answer.status, headers, length=int(length) if length is not None else None)
    exchange.flush_head()  # the body may take its time
    if exchange.request.method != "HEAD":
        async for data in answer.chunks:
            await exchange.write(data)
    await exchange.finish()


async def _open_upload(app: App, exchange: Exchange, reservation: MemoryReservation) -> tuple[_Upload, str | None]:
    """Begin to read the body, as far as is needed to know the model that it names."""
    request = exchange.request
    for name, model in request.query.items():
        if name.lower() == "model":
            exchange.demand_model(model)
    if exchange.caller.models is not None:
        return await _for_a_model(app, exchange, reservation)
    if not request.can_read_body:
        return _Upload(b"", None), None
    plain = hdrs.CONTENT_ENCODING not in request.headers
    only = app.upstreams.all[0] if len(app.upstreams.all) == 1 else None
    if only is not None and not only.names_matter:
        return _Upload(b"", chunks(request, app.body_limit)), None
    if plain and _may_be_json(request):
        raw = await read_body(request, app.body_limit, reservation=reservation)
        body = await _json_body(app, raw)
        return _Upload(raw, None, body), _model_of(body)
    rest = chunks(request, app.body_limit)
    if plain and request.content_type == "multipart/form-data":
        known = b""
        async for data in rest:
            known += data
            if len(known) >= PEEK_BYTES or forms.model_of(known) is not None:
                break
        return _Upload(known, rest), forms.model_of(known)
    return _Upload(b"", rest), None


def _may_be_json(request: BaseRequest) -> bool:
    """Whether a body is looked at as JSON: also what curl and others say, or leave unsaid, of one that they send."""
    kind = request.content_type
    return kind.endswith("json") or kind in _SAID_OF_JSON or hdrs.CONTENT_TYPE not in request.headers


async def _for_a_model(app: App, exchange: Exchange, reservation: MemoryReservation) -> tuple[_Upload, str | None]:
    """Read the body of a caller who may use some models only, and demand that it names those and no others.

    Where nothing names a model, in a way that any server reads alike, there is no knowing which one would be reached.
    """
    request = exchange.request
    plain = hdrs.CONTENT_ENCODING not in request.headers
    raw = await read_body(request, app.body_limit, reservation=reservation) if plain else b""
    named: Sequence[str | None] = ()
    body: Body | None = None
    if request.content_type.endswith("json"):
        body = await _json_body(app, raw)
        named = [_model_of(body)]
    elif request.content_type == "multipart/form-data":
        try:
            named = forms.models_of(raw)
        except ValueError:
            raise invalid_request(
                "A part of the form names itself in a way that servers may read differently."
            ) from None
    for model in named or (None,):
        if model is None:
            raise _unknown()
        exchange.demand_model(model, () if body is None else body.fields)
    return _Upload(raw if body is None else body.raw, None, body), named[0]  # a body names it once, whoever reads it


def _unknown() -> ApiError:
    message = "This key is for some models only; on this path it takes a body, JSON or a form, that names one of them."
    return ApiError(403, message, type="permission_error", param="model", code="model_required")


async def _json_body(app: App, raw: bytes) -> Body | None:
    """The body as JSON; one that cannot be read is the upstream's to refuse."""
    try:
        check = app.admission.check_memory
        return parsed(raw, check) if len(raw) < LONG else await app.offload.run(parsed, raw, check)
    except ApiError as error:
        if error.status != 400:
            raise
        return None


def _model_of(body: Body | None) -> str | None:
    model = None if body is None else body.fields.get("model")
    return model if isinstance(model, str) else None


async def _route(app: App, model: str | None) -> Route:
    """The upstream whose model the body names, else the configured one, else the only one."""
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


def _headers_up(exchange: Exchange, upstream: Upstream, upload: _Upload) -> CIMultiDict[str]:
    request = exchange.request
    caller = upstream.caller_shown(exchange.caller.name)
    headers = upward(request.headers, upstream.settings.api_key, drop=TRACE_HEADERS, caller=caller)
    headers["X-Request-Id"] = exchange.id
    if upload.rest is not None and hdrs.CONTENT_LENGTH in request.headers:
        headers[hdrs.CONTENT_LENGTH] = request.headers[hdrs.CONTENT_LENGTH]
    return headers
