"""What is reported when a request is over: a line of the access log, and the final attributes of its span.

Of the client's own text, the line holds the request id, and the path if the endpoint's name does not identify it.
docs/reference/logs.md is the table below; a test checks that they agree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

from nproxy.gateway.content import as_text
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.spans import Spans
from nproxy.telemetry.logs import access, access_record
from nproxy.telemetry.tracing import Value

LONGEST_PATH = 256
"""In characters; a longer path is cut."""


def _rounded(seconds: float) -> float:
    """Round to microseconds. `round`, which is exact for any number of digits, takes three times as long."""
    return int(seconds * 1e6 + 0.5) / 1e6


def _counted(reasons: Mapping[int, str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for reason in reasons.values():  # one or a few: creating a Counter takes longer
        counts[reason] = counts.get(reason, 0) + 1
    return counts


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the access log. A field is left out if its value is None, "", an empty collection or, without
    `zero`, 0.
    """

    name: str
    """The key in the line."""
    text: str
    """Its description in the reference."""
    of: str
    """The attribute of the exchange that it shows."""
    zero: bool = False
    """A value of 0 is shown."""
    shown: Callable[[Any], object] | None = None
    """Converts the attribute to the value in the line; None if it is shown as it is."""


_OUTCOMES = (
    "`ok`, `partial`, `ended` by a shutdown, `slow_reader` if the client read nothing for `limits.write_seconds`,"
    " or the kind of failure that caused the error."
)

FIELDS = (
    Field("request_id", "`x-request-id`: the client's, or a generated one.", "id"),
    Field("trace_id", "The id of its trace, if any.", "record.tracing.id"),
    Field("client", "The client's address; behind `listen.trusted_proxies`, as they report it.", "record.client"),
    Field("caller", "The name of the API key.", "caller.name"),
    Field("method", "The HTTP method.", "request.method"),
    Field(
        "path",
        "The path without its query, if the endpoint does not identify it; only for authenticated clients.",
        "unnamed_path",
        shown=itemgetter(slice(LONGEST_PATH)),
    ),
    Field(
        "status",
        "The status that was sent; 499 if the client disconnected, or was cut off, before the end.",
        "record.code",
        zero=True,
    ),
    Field(
        "error_code",
        "The `code` of the [error](errors.md), if nproxy refused the request itself; else see `outcome`.",
        "record.error_code",
    ),
    Field("outcome", _OUTCOMES, "record.outcome"),
    Field("client_left", "true if the client disconnected before the end of its answer.", "record.client_left"),
    Field("upstream", "The upstream that was called last.", "record.upstream"),
    Field(
        "replicas",
        "The replicas that were called, each once, in the order of the first calls.",
        "record.replicas",
        shown=list,
    ),
    Field(
        "model",
        "The model, named as in metrics: `other` if neither the configuration nor a model list has it.",
        "record.model",
    ),
    Field("mode", "`x-nproxy-mode`: `relay`, `native` or `fanout`; or `passthrough`.", "record.mode"),
    Field("n", "Choices requested per prompt.", "record.n"),
    Field("choices", "Choices in total: n for each prompt.", "record.choices"),
    Field("legs", "`x-nproxy-legs`: upstream calls that share the choices, each counted once.", "record.legs"),
    Field("attempts", "Upstream calls in total, retries and fallbacks included.", "record.attempts"),
    Field(
        "finish_reasons",
        "The number of choices for each finish reason.",
        "record.finish_reasons",
        shown=_counted,
    ),
    Field(
        "prompt_tokens",
        "Prompt tokens as reported to the client, counted even if it did not ask for usage.",
        "record.prompt_tokens",
        zero=True,
    ),
    Field(
        "completion_tokens",
        "Completion tokens of all choices, counted in the same way.",
        "record.completion_tokens",
        zero=True,
    ),
    Field("queue_seconds", "Time that it waited for admission.", "record.queue_seconds", zero=True, shown=_rounded),
    Field(
        "first_token_seconds",
        "Time from the start of the request to the first piece of a stream.",
        "record.first_token_seconds",
        zero=True,
        shown=_rounded,
    ),
    Field(
        "seconds", "Time from the request's head to the end of the answer.", "record.seconds", zero=True, shown=_rounded
    ),
    Field("bytes_in", "Bytes of the request body that were read, as sent.", "request.content.total_bytes", zero=True),
    Field("bytes_out", "Bytes of the answer, head included.", "request.writer.output_size", zero=True),
    Field(
        "input",
        "The prompt; only with `telemetry.log_content`.",
        "record.content",
        shown=lambda content: content.input(),
    ),
    Field(
        "output",
        "The answers; only with `telemetry.log_content`.",
        "record.content",
        shown=lambda content: content.output(),
    ),
)
"""In the order of the line, after `time`, `level`, `logger` and `message`, which is the endpoint."""

_values = attrgetter(*(field.of for field in FIELDS))
_NAMES = tuple(field.name for field in FIELDS)
_ZERO = frozenset(field.name for field in FIELDS if field.zero)
_SHOWN = tuple(field.shown for field in FIELDS)


def log_request(exchange: Exchange) -> None:
    """Write the line; at debug level for health probes and scrapes, which come all the time."""
    level = logging.DEBUG if exchange.introspection else logging.INFO
    if access.isEnabledFor(level):
        access.handle(access_record(level, exchange.record.endpoint, fields(exchange)))


def fields(exchange: Exchange) -> dict[str, object]:
    """Return the fields of the line."""
    found = {
        name: value if shown is None else shown(value)
        for name, value, shown in zip(_NAMES, _values(exchange), _SHOWN, strict=True)
        if value or (value is not None and name in _ZERO)
    }
    if exchange.record.content is None:
        return found
    return {name: value for name, value in found.items() if value != []}  # it may hold no prompt or no answer


def end_span(exchange: Exchange, spans: Spans) -> None:
    """End the request's span. spans: those of the exchange."""
    record, span, request, path = exchange.record, spans.request, exchange.request, exchange.path
    named = path.removeprefix("/v1").removeprefix("/") == record.endpoint
    attributes: dict[str, Value | None] = {
        "url.path": exchange.shown_path,
        "url.scheme": request.scheme,
        "network.protocol.version": f"{request.version.major}.{request.version.minor}",
        "user_agent.original": request.headers.get("user-agent"),
        "client.address": record.client,
        "http.route": path if named else None,
        "http.response.status_code": None if exchange.response is None else exchange.response.status,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "gen_ai.response.time_to_first_chunk": record.first_token_seconds,
        "nproxy.request_id": exchange.id,
        "nproxy.caller": exchange.caller.name,
        "nproxy.mode": record.mode,
        "nproxy.upstream": record.upstream,
        "nproxy.legs": record.legs or None,
        "nproxy.attempts": record.attempts or None,
        "nproxy.outcome": record.outcome,
        "nproxy.client_left": record.client_left or None,
    }
    if (content := record.content) is not None:
        attributes["gen_ai.input.messages"] = as_text(content.input())
        attributes["gen_ai.output.messages"] = as_text(content.output())
    span.set({name: value for name, value in attributes.items() if value is not None and value != ""})
    span.rename(f"{request.method} {path if named else record.endpoint}")
    spans.left_upstream()
    spans.finish_reasons(record.finish_reasons)
    if record.broken or record.code >= 500:
        span.fail(record.outcome if record.broken else str(record.code))
    span.end()
