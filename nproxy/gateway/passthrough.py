"""Pass-through: requests that are sent to an upstream unchanged, with any method, and streamed both ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from aiohttp import hdrs
from aiohttp.web_request import BaseRequest
from multidict import CIMultiDict

from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.failure_table import KEY_REFUSED, Follows, follows
from nproxy.choices.failures import as_error, upstreams_own
from nproxy.choices.retry import untried
from nproxy.gateway import forms
from nproxy.gateway.admission.grant import Grant
from nproxy.gateway.admission.guess import BYTES_PER_TOKEN
from nproxy.gateway.admission.memory import MemoryReservation
from nproxy.gateway.app import App
from nproxy.gateway.bodies import chunks, parsed, read_body
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.fallback import Attempt, Fallbacks
from nproxy.gateway.response_writer import ClientLeft
from nproxy.gateway.tracing import TRACE_HEADERS
from nproxy.openai.body import LONG, Body
from nproxy.openai.errors import (
    ApiError,
    invalid_request,
    model_not_found,
)
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
_SAID_OF_JSON = ("application/x-www-form-urlencoded", "text/plain")
"""Content types that clients such as curl send with JSON by default."""
PEEK_BYTES = 64 << 10
"""How many bytes of a multipart body are searched for the model."""
REPEATABLE_BYTES = 64 << 10
"""A body up to this length is read before it is sent, so that it can be sent again: a server may close the connection
at the moment at which it is used once more.
"""


@dataclass(slots=True)
class _Upload:
    """The request body to send to an upstream."""

    known: bytes
    """The part that was read to find the model."""
    rest: AsyncGenerator[bytes] | None
    """The rest, as it comes; None if all was read."""
    body: Body | None = None
    """The whole body parsed as JSON; None if it was not parsed."""
    error: ApiError | None = None
    """The error that ended the upload, if the client caused it."""
    used: bool = False
    """Sending of the rest has begun, so the body cannot be sent again."""
    uncompressed: bool = False
    """Ask for an answer that is not compressed, because its tokens are to be found."""

    def data(self, name: ModelName) -> bytes | AsyncGenerator[bytes] | None:
        """Return the body to send to an upstream. name: the model's name there."""
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
    """Send the request to an upstream and its answer to the client. Raises ApiError if no answer has begun."""
    record = exchange.record
    with app.admission.guard(exchange.caller) as reservation:
        upload, model = await _open_upload(app, exchange, reservation)
        upload.uncompressed = exchange.caller.rates.tokens is not None
        fallbacks = Fallbacks(app, await _route(app, model), model, partial(Attempt, choices=1))
        attempt = fallbacks.begin() or await fallbacks.elsewhere()
        admission, first = app.admission, attempt.upstream.name
        with await admission.admit(exchange.caller, first, attempt.choices, waited=record.waited) as grant:
            exchange.headers.update(admission.headers(exchange.caller))
            following: Attempt | None = attempt
            while following is not None:
                name, upstream = following.route.name, following.upstream
                record.mode, record.upstream = "passthrough", upstream.name
                if name.shown:
                    record.model = app.metrics.model_label(name.shown, upstream.name, listed=name.listed)
                following = await _serve(exchange, following.route, upload, fallbacks, grant)


async def _serve(
    exchange: Exchange, route: Route, upload: _Upload, fallbacks: Fallbacks[Attempt], grant: Grant
) -> Attempt | None:
    """Serve the request from one upstream.

    Returns the next attempt if this one failed before an answer to the client began; None if the request is done.
    """
    usage = PassedUsage()
    try:
        unserved = await _ask(exchange, route, upload, usage, fallback_possible=fallbacks.fallback_possible)
    finally:
        if usage.found:
            # the last counts of a stream that broke off, at either end, may be those of its beginning
            whole = exchange.record.outcome == "ok"
            completion = usage.completion if whole else max(usage.completion, usage.events)
            exchange.record.prompt_tokens, exchange.record.completion_tokens = usage.prompt, completion
            grant.spend(usage.prompt, completion)
        elif usage.events:
            grant.came(len(upload.known) // BYTES_PER_TOKEN + usage.events)
    if unserved is None:
        return None
    # the replica has been left, so that others may use it while this request waits for the next upstream
    if _may_go_on(unserved.failure, upload) and (attempt := await fallbacks.after(grant)) is not None:
        return attempt
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
    exchange: Exchange, route: Route, upload: _Upload, usage: PassedUsage, *, fallback_possible: bool
) -> _Unserved | None:
    """Ask one upstream, again if retries allow it, and send its answer to the client: then None is returned.

    usage: gets what is sent. fallback_possible: another upstream may be asked, so a refusal is not sent yet if that one
    may do better.
    """
    record, upstream = exchange.record, route.upstream
    group, retries = CallGroup(route.model, assigned=record.assigned), _Retries(upstream)
    exchange.headers["x-nproxy-upstream"] = upstream.name
    headers = _headers_up(exchange, upstream, upload)
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


def _may_go_on(failure: Failure, upload: _Upload) -> bool:
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


class _Retries:
    """Decides on retries at one upstream while the body can still be sent again.

    One retry is free, if a kept-alive connection was closed without an answer, and so are retries at replicas not tried
    yet if the last one refused the connection. The others take from the retry budget, and need a failure after which
    the request cannot have been processed: no connection was made, or the replica was found down.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._budget = upstream.budget
        self._per_leg = self._left = upstream.settings.retries.per_leg
        self._free = True

    def another(self, failure: Failure) -> bool:
        """Whether to try again after this failure; takes the retry from those that are left."""
        if failure.kind is FailureKind.STALE and self._free:
            self._free = False
            return True
        if untried(failure) and self._per_leg:
            return True
        if not follows(failure, Follows.UNSERVED) or not self._left or not self._budget.take():
            return False
        self._left -= 1
        return True


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


async def _open_upload(app: App, exchange: Exchange, reservation: MemoryReservation) -> tuple[_Upload, str | None]:
    """Read the body as far as is needed to find the model that it names. Returns the upload and the model, or None."""
    request = exchange.request
    for name, model in request.query.items():
        if name.lower() == "model":
            exchange.caller.demand_model(model)
    if exchange.caller.models is not None:
        return await _for_a_model(app, exchange, reservation)
    if not request.can_read_body:
        return _Upload(b"", None), None
    plain = hdrs.CONTENT_ENCODING not in request.headers
    only = app.upstreams.all[0] if len(app.upstreams.all) == 1 else None
    names_matter = only is None or only.names_matter
    if names_matter and plain and _may_be_json(request):
        raw = await read_body(request, app.settings.body_limit, reservation=reservation)
        body = await _json_body(app, exchange.caller.bucket, raw)
        return _Upload(raw, None, body), _model_of(body)
    rest = chunks(request, app.settings.body_limit)
    if names_matter and plain and request.content_type == "multipart/form-data":
        known, named = b"", None
        async for data in rest:
            known += data
            named = forms.model_of(known)
            if named is not None or len(known) >= PEEK_BYTES:
                break
        return _Upload(known, rest), named
    if request.content_length is not None and request.content_length <= REPEATABLE_BYTES:
        return _Upload(b"".join([data async for data in rest]), None), None
    return _Upload(b"", rest), None


def _may_be_json(request: BaseRequest) -> bool:
    """Whether to try a body as JSON: also with the content types that curl and others send by default, or none."""
    kind = request.content_type
    return kind.endswith("json") or kind in _SAID_OF_JSON or hdrs.CONTENT_TYPE not in request.headers


async def _for_a_model(app: App, exchange: Exchange, reservation: MemoryReservation) -> tuple[_Upload, str | None]:
    """Read the body of a caller who may use some models only, and check that it names these and no others.

    A body must name a model in a way that all servers read alike; else it is unknown which model would be used.
    Raises ApiError 400, 403 or 404.
    """
    request = exchange.request
    if not _is_read_alike(request):
        raise _unknown()
    plain = hdrs.CONTENT_ENCODING not in request.headers
    raw = await read_body(request, app.settings.body_limit, reservation=reservation) if plain else b""
    named: Sequence[str | None] = ()
    body: Body | None = None
    if request.content_type.endswith("json"):
        body = await _json_body(app, exchange.caller.bucket, raw)
        named = [_model_of(body)]
    elif request.content_type == "multipart/form-data":
        try:
            if len(raw) < LONG:
                named = forms.models_of(raw)
            else:
                named = await app.offload.run(exchange.caller.bucket, forms.models_of, raw)
        except ValueError:
            raise invalid_request(
                "The name of a form part is written in a way that servers interpret differently."
            ) from None
    for model in named or (None,):
        if model is None:
            raise _unknown()
        exchange.caller.demand_model(model, () if body is None else body.fields)
    return _Upload(raw if body is None else body.raw, None, body), named[0]  # each was checked


def _is_read_alike(request: BaseRequest) -> bool:
    """Whether all servers take the body for the same type, in the same encoding."""
    return len(request.headers.getall(hdrs.CONTENT_TYPE, ())) <= 1 and (request.charset or "utf-8").lower() == "utf-8"


def _unknown() -> ApiError:
    message = (
        "This key is limited to certain models; on this path, the body must be JSON or a form, with a content-type "
        "that says so, and name one of them."
    )
    return ApiError(403, message, type="permission_error", param="model", code="model_required")


async def _json_body(app: App, bucket: str, raw: bytes) -> Body | None:
    """Return the body parsed as JSON, or None if it is invalid: then the upstream may refuse it."""
    try:
        check = app.admission.check_memory
        return parsed(raw, check) if len(raw) < LONG else await app.offload.run(bucket, parsed, raw, check)
    except ApiError as error:
        if error.status != 400:
            raise
        return None


def _model_of(body: Body | None) -> str | None:
    model = None if body is None else body.fields.get("model")
    return model if isinstance(model, str) else None


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


def _headers_up(exchange: Exchange, upstream: Upstream, upload: _Upload) -> CIMultiDict[str]:
    request = exchange.request
    caller = upstream.caller_shown(exchange.caller.name)
    headers = upward(request.headers, upstream.settings.api_key, drop=TRACE_HEADERS, caller=caller)
    headers["X-Request-Id"] = exchange.id
    if upload.uncompressed:
        headers[hdrs.ACCEPT_ENCODING] = "identity"
    if upload.rest is not None and hdrs.CONTENT_LENGTH in request.headers:
        headers[hdrs.CONTENT_LENGTH] = request.headers[hdrs.CONTENT_LENGTH]
    return headers
