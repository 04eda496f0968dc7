"""Endpoints that go to an upstream as they are: any method, streamed both ways, not understood."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from aiohttp import hdrs
from multidict import CIMultiDict

from nproxy.choices.events import FailureKind
from nproxy.choices.failures import as_error
from nproxy.gateway.admission.memory import Hold
from nproxy.gateway.app import App
from nproxy.gateway.bodies import chunks, read_body
from nproxy.gateway.exchange import Exchange
from nproxy.openai.body import Body
from nproxy.openai.errors import (
    ApiError,
    invalid_request,
    model_not_found,
)
from nproxy.upstreams.forward import Answer, ForwardError
from nproxy.upstreams.headers import downward, upward
from nproxy.upstreams.kin import Kin
from nproxy.upstreams.models import ModelName
from nproxy.upstreams.upstream import Upstream

PEEK_BYTES = 64 << 10
"""How far into a multipart body the model is looked for."""

_MULTIPART_MODEL = re.compile(
    rb'content-disposition:[^\r\n]*;\s*name="?model"?\s*(?:;[^\r\n]*)?\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n',
    re.IGNORECASE,
)


@dataclass(slots=True)
class _Upload:
    """The body on its way up: what was read to find the model, and the rest as it comes.

    body: it whole and understood, where it had to be. error: what ended it, when it was the client's doing.
    """

    known: bytes
    rest: AsyncGenerator[bytes] | None
    body: Body | None = None
    error: ApiError | None = None

    async def stream(self) -> AsyncGenerator[bytes]:
        if self.known:
            yield self.known
        if self.rest is None:
            return
        try:
            async for data in self.rest:
                yield data
        except ApiError as error:
            self.error = error
            raise


async def serve(app: App, exchange: Exchange) -> None:
    """Send the request on and the answer back. Raises ApiError where no answer has begun."""
    with app.desk.door(exchange.caller) as hold:
        upload, model = await _open_upload(app, exchange, hold)
        upstream, name = await _route(app, model)
        async with app.desk.admitted(exchange.caller, upstream.name, 1):
            exchange.headers.update(app.desk.headers(exchange.caller))
            await _serve(exchange, upstream, name, upload, model)


async def _serve(
    exchange: Exchange, upstream: Upstream, name: ModelName | None, upload: _Upload, model: str | None
) -> None:
    if name is not None and name.upstream is not None and upload.body is not None:
        upload.known = bytes(upload.body.splice({"model": name.upstream}))
    exchange.upstream, exchange.mode = upstream.name, "passthrough"
    exchange.headers["x-nproxy-upstream"] = upstream.name
    called = model if name is None else name.upstream or name.shown
    headers = _headers_up(exchange, upstream, upload)
    try:
        if upload.rest is not None:
            await _pass(exchange, upstream, called, headers, upload.stream())
            return
        try:
            await _pass(exchange, upstream, called, headers, upload.known or None)
        except ForwardError as error:
            if error.failure.kind is not FailureKind.STALE or exchange.response is not None:
                raise
            # Nothing was answered on a socket that was closing: the one free retry, as the body is still here.
            await _pass(exchange, upstream, called, headers, upload.known or None)
    except ForwardError as error:
        if exchange.response is None:
            raise upload.error or as_error([error.failure], retries_spent=False) from None
        exchange.abort()  # a cut answer must not look complete


async def _pass(
    exchange: Exchange,
    upstream: Upstream,
    model: str | None,
    headers: CIMultiDict[str],
    data: bytes | AsyncGenerator[bytes] | None,
) -> None:
    async with upstream.pass_on(Kin(model), exchange.request.method, exchange.target, headers, data) as answer:
        await _send_back(exchange, answer)


async def _send_back(exchange: Exchange, answer: Answer) -> None:
    headers = downward(answer.headers)
    length = answer.headers.get(hdrs.CONTENT_LENGTH)
    await exchange.begin(answer.status, headers, length=int(length) if length is not None else None)
    if exchange.request.method != "HEAD":
        async for data in answer.chunks:
            await exchange.write(data)
    await exchange.finish()


async def _open_upload(app: App, exchange: Exchange, hold: Hold) -> tuple[_Upload, str | None]:
    """Begin to read the body, as far as is needed to know the model that it names."""
    request = exchange.request
    if not request.can_read_body:
        return _Upload(b"", None), None
    plain = hdrs.CONTENT_ENCODING not in request.headers
    only = app.upstreams.all[0] if len(app.upstreams.all) == 1 else None
    if exchange.caller.models is not None:
        return await _for_a_model(app, exchange)
    if only is not None and not only.models.configured:
        return _Upload(b"", chunks(request, app.body_limit)), None
    if plain and request.content_type.endswith("json"):
        raw = await read_body(request, app.body_limit, reach=hold.reach)
        body = await _json_body(app, raw)
        return _Upload(raw, None, body), _model_of(body)
    rest = chunks(request, app.body_limit)
    if plain and request.content_type == "multipart/form-data":
        known = b""
        async for data in rest:
            known += data
            if len(known) >= PEEK_BYTES or _MULTIPART_MODEL.search(known):
                break
        found = _MULTIPART_MODEL.search(known)
        return _Upload(known, rest), found[1].decode("utf-8", "replace") if found else None
    return _Upload(b"", rest), None


async def _for_a_model(app: App, exchange: Exchange) -> tuple[_Upload, str | None]:
    """Read the body of a caller who may use some models only, and demand that it names those and no others."""
    request = exchange.request
    raw = await read_body(request, app.body_limit) if hdrs.CONTENT_ENCODING not in request.headers else b""
    named: list[str | None] = []
    body: Body | None = None
    if request.content_type.endswith("json"):
        body = await _json_body(app, raw)
        named = [_model_of(body)]
    elif request.content_type == "multipart/form-data":
        named = [found.decode("utf-8", "replace") for found in _MULTIPART_MODEL.findall(raw)]
    for model in named or [None]:
        exchange.demand_model(model or "")
    return _Upload(raw if body is None else body.raw, None, body), named[0]  # a body names it once, whoever reads it


async def _json_body(app: App, raw: bytes) -> Body | None:
    """The body as JSON; one that cannot be read is the upstream's to refuse."""
    try:
        return await app.aside.by_size(len(raw), Body.parse, raw)
    except ApiError:
        return None


def _model_of(body: Body | None) -> str | None:
    model = None if body is None else body.fields.get("model")
    return model if isinstance(model, str) else None


async def _route(app: App, model: str | None) -> tuple[Upstream, ModelName | None]:
    """The upstream whose model the body names, else the configured one, else the only one."""
    upstreams = app.upstreams
    if model is not None:
        for upstream in upstreams.all:
            if (name := await upstream.models.find(model)) is not None:
                return upstream, name
    if app.config.passthrough.upstream is not None:
        return upstreams.by_name[app.config.passthrough.upstream], None
    if len(upstreams.all) == 1:
        return upstreams.all[0], None
    if model is None:
        raise invalid_request("The request names no model, and no upstream is configured for this path.", param="model")
    for upstream in upstreams.all:
        if upstream.models.takes_any():
            return upstream, None
    raise model_not_found(model)


def _headers_up(exchange: Exchange, upstream: Upstream, upload: _Upload) -> CIMultiDict[str]:
    request = exchange.request
    caller = upstream.caller_shown(exchange.caller.name)
    headers = upward(request.headers, upstream.settings.api_key, drop=("x-request-id",), caller=caller)
    headers["X-Request-Id"] = exchange.id
    if upload.rest is not None and hdrs.CONTENT_LENGTH in request.headers:
        headers[hdrs.CONTENT_LENGTH] = request.headers[hdrs.CONTENT_LENGTH]
    return headers
