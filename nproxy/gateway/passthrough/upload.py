"""What is sent up of a request that is passed through: its body, read as far as is needed to find its model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from aiohttp import hdrs
from aiohttp.web_request import BaseRequest

from nproxy.gateway.admission.memory import MemoryReservation
from nproxy.gateway.app import App
from nproxy.gateway.bodies import chunks, parsed, read_body
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.passthrough import forms
from nproxy.gateway.paths import is_inference
from nproxy.openai.body import LONG, Body
from nproxy.openai.errors import ApiError, invalid_request
from nproxy.upstreams.models import ModelName

_SAID_OF_JSON = ("application/x-www-form-urlencoded", "text/plain")
"""Content types that clients such as curl send with JSON by default."""
PEEK_BYTES = 64 << 10
"""How many bytes of a form are searched for the model. Inference endpoints need one, so theirs are read to the end if
it does not come before: curl sends parts in the order in which they were given, often the file first.
"""
REPEATABLE_BYTES = 64 << 10
"""A body up to this length is read before it is sent, so that it can be sent again: a server may close the connection
at the moment at which it is used once more.
"""


@dataclass(slots=True)
class PassedBody:
    """The request body to send to an upstream."""

    known: bytes
    """The part that was read to find the model."""
    rest: AsyncGenerator[bytes] | None
    """The rest, as it comes; None if all was read."""
    body: Body | None = None
    """The whole body parsed as JSON; None if it was not parsed."""
    place: slice | None = None
    """Where in `known` a form names its model."""
    error: ApiError | None = None
    """The error that ended the upload, if the client caused it."""
    used: bool = False
    """Sending of the rest has begun, so the body cannot be sent again."""
    uncompressed: bool = False
    """Ask for an answer that is not compressed, because its tokens are to be found."""

    def data(self, name: ModelName) -> bytes | AsyncGenerator[bytes] | None:
        """Return the body to send to an upstream. name: the model's name there."""
        start = self._start(name)
        return start or None if self.rest is None else self._stream(start, self.rest)

    def grown(self, name: ModelName) -> int:
        """Return by how many bytes the model's name at the upstream is longer than the client's."""
        return len(self._start(name)) - len(self.known)

    def _start(self, name: ModelName) -> bytes:
        """Return the part that was read, with the model's name at the upstream."""
        if name.upstream is None:
            return self.known
        if self.body is not None:
            return bytes(self.body.splice({"model": name.upstream}))
        if (place := self.place) is None:
            return self.known
        return b"".join((self.known[: place.start], name.upstream.encode(), self.known[place.stop :]))

    async def _stream(self, start: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        self.used = True
        if start:
            yield start
        try:
            async for data in rest:
                yield data
        except ApiError as error:
            self.error = error
            raise


async def open_upload(app: App, exchange: Exchange, reservation: MemoryReservation) -> tuple[PassedBody, str | None]:
    """Read the body as far as is needed to find the model that it names. Returns the upload and the model, or None."""
    request = exchange.request
    for name, model in request.query.items():
        if name.lower() == "model":
            exchange.caller.demand_model(model)
    if exchange.caller.models is not None:
        return await _for_a_model(app, exchange, reservation)
    if not request.can_read_body:
        return PassedBody(b"", None), None
    plain = hdrs.CONTENT_ENCODING not in request.headers
    only = app.upstreams.all[0] if len(app.upstreams.all) == 1 else None
    names_matter = only is None or only.names_matter
    if names_matter and plain and _may_be_json(request):
        raw = await read_body(request, app.settings.body_limit, reservation=reservation)
        body = await _json_body(app, exchange.caller.bucket, raw)
        return PassedBody(raw, None, body), _model_of(body)
    rest = chunks(request, app.settings.body_limit)
    is_form = names_matter and plain and request.content_type == "multipart/form-data"
    if request.content_length is not None and request.content_length <= REPEATABLE_BYTES:
        raw = b"".join([data async for data in rest])
        return _of_form(raw, None, forms.named_in(raw)) if is_form else (PassedBody(raw, None), None)
    if not is_form:
        return PassedBody(b"", rest), None
    known, named = b"", forms.Named()
    async for data in rest:
        known += data
        named = forms.named_in(known)
        if named.model is not None or len(known) >= PEEK_BYTES:
            break
    if named.model is not None or not is_inference(exchange.path):
        return _of_form(known, rest, named)
    parts = [known]
    async for data in rest:
        parts.append(data)
        reservation.reach(reservation.size + len(data))
    raw = b"".join(parts)
    return _of_form(raw, None, await _named_in(app, exchange.caller.bucket, raw))


def _of_form(known: bytes, rest: AsyncGenerator[bytes] | None, named: forms.Named) -> tuple[PassedBody, str | None]:
    return PassedBody(known, rest, place=named.place), named.model


async def _named_in(app: App, bucket: str, form: bytes) -> forms.Named:
    """Return what a form names, without keeping the event loop waiting."""
    return forms.named_in(form) if len(form) < LONG else await app.offload.run(bucket, forms.named_in, form)


def _may_be_json(request: BaseRequest) -> bool:
    """Whether to try a body as JSON: also with the content types that curl and others send by default, or none."""
    kind = request.content_type
    return kind.endswith("json") or kind in _SAID_OF_JSON or hdrs.CONTENT_TYPE not in request.headers


async def _for_a_model(app: App, exchange: Exchange, reservation: MemoryReservation) -> tuple[PassedBody, str | None]:
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
    place = None if body is not None else (await _named_in(app, exchange.caller.bucket, raw)).place
    return PassedBody(raw if body is None else body.raw, None, body, place), named[0]  # each was checked


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
