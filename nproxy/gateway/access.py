"""What is told of a request when it is over: a line of the access log, and the last of its span.

Of what the client wrote there is its id, and the path where no endpoint's name says it; docs/reference/logs.md is the
table below, and a test holds the two together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from nproxy.gateway.callers import ANYBODY
from nproxy.gateway.content import as_text
from nproxy.gateway.exchange import Exchange
from nproxy.telemetry.logs import access, access_record
from nproxy.telemetry.tracing import Value

LONGEST_PATH = 256
_UNNAMED = ("other", "passthrough")
"""Endpoints that say little of the path."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the access log. of: its value, left out where it is None, "", or an empty collection."""

    name: str
    text: str
    of: Callable[[Exchange], object]


FIELDS = (
    Field("request_id", "`x-request-id`: the client's, or one that was made.", attrgetter("id")),
    Field("trace_id", "The trace it belongs to, if any.", attrgetter("tracing.id")),
    Field("client", "The client's address, behind `listen.trusted_proxies`.", attrgetter("client")),
    Field("caller", "The name of the key.", attrgetter("caller.name")),
    Field("method", "The HTTP method.", attrgetter("request.method")),
    Field(
        "path", "The path without its query, where the endpoint does not say it, of who was let in.", lambda x: _path(x)
    ),
    Field("status", "The status that was sent; 499 where the client left before the end.", attrgetter("code")),
    Field(
        "outcome",
        "`ok`, `partial`, `ended` by a shutdown, or the kind of failure that decided it.",
        attrgetter("outcome"),
    ),
    Field("client_left", "true where the client left before the end of its answer.", lambda x: x.client_left or None),
    Field("upstream", "The upstream that was asked last.", attrgetter("upstream")),
    Field("replicas", "Where calls went, each once, in the order of the first calls.", lambda x: [*x.replicas]),
    Field("model", "The model, as metrics name it: `other` where no configuration or list does.", attrgetter("model")),
    Field("mode", "`x-nproxy-mode`: `relay`, `native` or `fanout`; or `passthrough`.", attrgetter("mode")),
    Field("n", "Choices per prompt that were asked for.", lambda x: x.n or None),
    Field("choices", "Choices in all: n for each prompt.", lambda x: x.choices or None),
    Field(
        "legs", "`x-nproxy-legs`: upstream calls that share the choices, each counted once.", lambda x: x.legs or None
    ),
    Field(
        "attempts",
        "Upstream calls in all: with those made again, and those of fallbacks.",
        lambda x: x.attempts or None,
    ),
    Field("finish_reasons", "How many choices ended with which reason.", lambda x: _counted(x.finish_reasons)),
    Field("prompt_tokens", "As the client is told, be it that it did not ask.", attrgetter("prompt_tokens")),
    Field("completion_tokens", "The same of all choices together.", attrgetter("completion_tokens")),
    Field("queue_seconds", "How long it waited to be let in.", lambda x: _rounded(x.queue_seconds)),
    Field(
        "first_token_seconds", "Until the first piece of a stream had come.", lambda x: _rounded(x.first_token_seconds)
    ),
    Field("seconds", "From its head to its end.", lambda x: _rounded(x.seconds)),
    Field("bytes_in", "Bytes of its body that were read, as sent.", attrgetter("request.content.total_bytes")),
    Field("bytes_out", "Bytes of the answer, its head with it.", attrgetter("request.writer.output_size")),
    Field("input", "The prompt; only with `telemetry.log_content`.", lambda x: x.content and x.content.input()),
    Field("output", "The answers; only with `telemetry.log_content`.", lambda x: x.content and x.content.output()),
)
"""In the order of the line, behind `time`, `level`, `logger` and `message`, which is the endpoint."""


def tell(exchange: Exchange) -> None:
    """Write the line, at debug for probes and scrapes, which come day and night."""
    level = logging.DEBUG if exchange.introspection else logging.INFO
    if access.isEnabledFor(level):
        access.handle(access_record(level, exchange.endpoint, fields(exchange)))


def fields(exchange: Exchange) -> dict[str, object]:
    """The fields of the line."""
    told: dict[str, object] = {}
    for field in FIELDS:
        value = field.of(exchange)
        if value or value == 0:
            told[field.name] = value
    return told


def end_span(exchange: Exchange) -> None:
    """End the request's span, if it is recorded."""
    spans = exchange.tracing.spans
    if spans is None:
        return
    span, request, path = spans.request, exchange.request, exchange.path
    named = path.removeprefix("/v1").removeprefix("/") == exchange.endpoint
    told: dict[str, Value | None] = {
        "url.path": path,
        "url.scheme": request.scheme,
        "network.protocol.version": f"{request.version.major}.{request.version.minor}",
        "user_agent.original": request.headers.get("user-agent"),
        "client.address": exchange.client,
        "http.route": path if named else None,
        "http.response.status_code": None if exchange.response is None else exchange.response.status,
        "gen_ai.usage.input_tokens": exchange.prompt_tokens,
        "gen_ai.usage.output_tokens": exchange.completion_tokens,
        "gen_ai.response.time_to_first_chunk": exchange.first_token_seconds,
        "nproxy.request_id": exchange.id,
        "nproxy.caller": exchange.caller.name,
        "nproxy.mode": exchange.mode,
        "nproxy.upstream": exchange.upstream,
        "nproxy.legs": exchange.legs or None,
        "nproxy.attempts": exchange.attempts or None,
        "nproxy.outcome": exchange.outcome,
        "nproxy.client_left": exchange.client_left or None,
    }
    if (content := exchange.content) is not None:
        told["gen_ai.input.messages"] = as_text(content.input())
        told["gen_ai.output.messages"] = as_text(content.output())
    span.set({name: value for name, value in told.items() if value is not None and value != ""})
    span.rename(f"{request.method} {path if named else exchange.endpoint}")
    spans.left_upstream()
    spans.finish_reasons(exchange.finish_reasons)
    if exchange.broken or exchange.code >= 500:
        span.fail(exchange.outcome if exchange.broken else str(exchange.code))
    span.end()


def _path(exchange: Exchange) -> str | None:
    """What strangers write is not told: it may be a key that somebody mistook for a path."""
    known = exchange.endpoint not in _UNNAMED or exchange.caller is ANYBODY
    return None if known else exchange.path[:LONGEST_PATH]


def _counted(reasons: Mapping[int, str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for reason in reasons.values():  # one or a few: a Counter takes longer to be made
        counts[reason] = counts.get(reason, 0) + 1
    return counts


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
