"""The engine's HTTP side: OpenAI's API, with native n. No model code, no torch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

from aiohttp import hdrs, web

from engine.server import metrics
from engine.server.answering.answers import Answer
from engine.server.answering.logprobs import Spelling
from engine.server.answering.output import Output
from engine.server.answering.writer import Writer
from engine.server.asking.order import Order, read_order
from engine.server.asking.salt import salt_of
from engine.server.endpoints.common import SERVING, json_answer, read
from engine.server.endpoints.embeddings import embeddings
from engine.server.endpoints.responses import endpoint as responses
from engine.server.endpoints.tokenize import detokenize, tokenize, tokenizer_info
from engine.server.groups import groups, manners, rules
from engine.server.preparing.prompts import context_length
from engine.server.serving import Serving
from nproxy.openai import request_id
from nproxy.openai.body import Body
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import ApiError, body_too_large, invalid_request, unknown_url, wrong_method
from nproxy.openai.requests import GenerationRequest, parse_chat, parse_completion
from nproxy.openai.tools import must_call
from nproxy.openai.wire import Wire

_BODY_BYTES = 10 << 20
_KEEPALIVE_SECONDS = 75.0
_ID = web.RequestKey("id", str)

log = logging.getLogger("engine.server")
_NO_ACCESS_LOG = logging.getLogger("engine.access")
_NO_ACCESS_LOG.disabled = True

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def listening(serving: Serving, *, uds: Path | None, host: str, port: int) -> AsyncIterator[str]:
    """Accept connections while the body runs, and yield the address; raise OSError if it cannot be bound."""
    app = web.Application(client_max_size=_BODY_BYTES, middlewares=[_errors_in_envelope])
    app[SERVING] = serving
    app.on_response_prepare.append(_signed)
    app.router.add_post("/v1/chat/completions", partial(_generate, dialect=Dialect.CHAT))
    app.router.add_post("/v1/completions", partial(_generate, dialect=Dialect.COMPLETIONS))
    app.router.add_post("/v1/embeddings", embeddings)
    responses.add_routes(app, serving.config)
    for prefix in ("", "/v1"):
        app.router.add_post(f"{prefix}/tokenize", tokenize)
        app.router.add_post(f"{prefix}/detokenize", detokenize)
        app.router.add_get(f"{prefix}/tokenizer_info", tokenizer_info)
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/v1/models/{id:.+}", _model)
    app.router.add_get("/health", _health)
    app.router.add_get("/ready", _ready)
    app.router.add_get("/metrics", _metrics)
    # Without handler_cancellation a disconnect is noticed only at the next write, and with a JSON answer never.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    loop = asyncio.get_running_loop()
    if runner.server is None:
        raise RuntimeError("the runner has no server after its setup")
    connection = partial(
        _Connection,
        runner.server,
        loop=loop,
        access_log=_NO_ACCESS_LOG,
        keepalive_timeout=_KEEPALIVE_SECONDS,
        auto_decompress=False,  # bodies are decoded, or refused, where they are read
    )
    try:
        if uds is not None:
            sockets = await loop.create_unix_server(connection, str(uds))
            address = f"unix:{uds}"
        else:
            sockets = await loop.create_server(connection, host, port)
            address = f"http://{f'[{host}]' if ':' in host else host}:{sockets.sockets[0].getsockname()[1]}"
        try:
            yield address
        finally:
            sockets.close()
    finally:
        await runner.cleanup()
        if uds is not None:
            uds.unlink(missing_ok=True)  # noqa: ASYNC240 (one name in a local folder)


class _Connection(web.RequestHandler):
    """aiohttp's connection.

    Errors of the HTTP parser also come in OpenAI's error format, and echo nothing of the request.
    """

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was under way")
        if status >= 500:
            log.error("a request failed", exc_info=exc)
            response = _error(_internal())
        else:
            response = _error(invalid_request("The request is not valid HTTP.", status=status))
        response.headers[hdrs.SERVER] = "nproxy"
        response.headers[request_id.HEADER] = _id(request.headers.get(request_id.HEADER))
        response.force_close()
        return response


@web.middleware
async def _errors_in_envelope(request: web.Request, handler: _Handler) -> web.StreamResponse:
    request[_ID] = _id(request.headers.get(request_id.HEADER))
    try:
        return await handler(request)
    except ApiError as error:
        return _error(error)
    except web.HTTPRequestEntityTooLarge:
        return _error(body_too_large(_BODY_BYTES))
    except web.HTTPMethodNotAllowed as error:
        return _error(wrong_method(sorted(error.allowed_methods)))
    except web.HTTPNotFound:
        return _error(unknown_url())
    except Exception:
        log.exception("request %s failed", request[_ID])
        return _error(_internal())


async def _signed(request: web.Request, response: web.StreamResponse) -> None:
    """Add the request's id to every answer, and keep aiohttp from sending its name and version."""
    response.headers[request_id.HEADER] = request[_ID]
    response.headers[hdrs.SERVER] = "nproxy"


def _id(given: str | None) -> str:
    return request_id.usable(given) or str(uuid.uuid4())


async def _generate(request: web.Request, dialect: Dialect) -> web.StreamResponse:
    serving = request.app[SERVING]
    with serving.request():
        order, adapter = await read(request, lambda body: _order(body, dialect, serving))
        asked = order.request
        salt = salt_of(request.headers, asked.body.fields)
        router = serving.router
        prompts = await serving.prepare(order)
        adds = groups(order, prompts, router.ready, serving.random, salt=salt, adapter=adapter)
        with router.submit(adds, rules(order, prompts)) as ticket:
            table, tokens = serving.tokenizer.table, [prompt.tokens for prompt in prompts]
            wire = _wire(serving, dialect, asked)
            answer = Answer(
                Writer(wire, Spelling(table, order.output_options), tokens, asked.n),
                ticket,
                Output(ticket.groups, table, manners(order, prompts, table)),
                prompt_tokens=sum(map(len, tokens)),
            )
            if asked.stream:
                return await answer.stream(request, continuous=asked.continuous_usage)
            return web.Response(body=await answer.whole(asked.n), content_type="application/json")


def _order(body: Body, dialect: Dialect, serving: Serving) -> tuple[Order, str | None]:
    """Return what a body asks for, and the adapter that it names."""
    parse = parse_chat if dialect is Dialect.CHAT else parse_completion
    asked = parse(body, serving.limits, serving.only_model)
    adapter = serving.adapter(asked.model)
    return read_order(asked, serving.most_logprobs), adapter


def _wire(serving: Serving, dialect: Dialect, asked: GenerationRequest) -> Wire:
    return Wire(
        dialect=dialect,
        id=f"{dialect.id_prefix}{uuid.uuid4().hex}",
        created=int(time.time()),
        model=asked.model,
        fingerprint=serving.fingerprint,
        include_usage=asked.stream and asked.include_usage,
        calls=must_call(asked.body.fields),
    )


async def _models(request: web.Request) -> web.Response:
    serving = request.app[SERVING]
    return json_answer({"object": "list", "data": [_entry(serving, id) for id in (serving.model, *serving.adapters)]})


async def _model(request: web.Request) -> web.Response:
    serving, id = request.app[SERVING], request.match_info["id"]
    serving.adapter(id)
    return json_answer(_entry(serving, id))


def _entry(serving: Serving, id: str) -> dict[str, object]:
    longest = context_length(serving.router.ready) if serving.ready else None
    entry = {"id": id, "object": "model", "created": serving.started, "owned_by": "nproxy", "max_model_len": longest}
    return entry if id == serving.model else {**entry, "parent": serving.model}


async def _health(request: web.Request) -> web.Response:
    """Answer whether the engine works. While it shuts down it still does, for the requests that it has accepted."""
    request.app[SERVING].check()
    return json_answer({"status": "ok"})


async def _ready(request: web.Request) -> web.Response:
    """Answer whether the engine works and accepts requests."""
    serving = request.app[SERVING]
    serving.check()
    with serving.request():
        return json_answer({"status": "ready"})


async def _metrics(request: web.Request) -> web.Response:
    body = request.app[SERVING].metrics.exposition()
    return web.Response(body=body, headers={hdrs.CONTENT_TYPE: metrics.CONTENT_TYPE})


def _error(error: ApiError) -> web.Response:
    return web.Response(
        status=error.status, body=error.envelope(), content_type="application/json", headers=dict(error.headers)
    )


def _internal() -> ApiError:
    return ApiError(500, "The engine failed to handle this request.", type="server_error", code="internal_error")
