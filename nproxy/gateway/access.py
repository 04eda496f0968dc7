"""What is reported when a request is over: a line of the access log, and the final attributes of its span.

Of the client's own text, the line holds the request id, and the path if the endpoint's name does not identify it.
docs/reference/logs.md is made from FIELDS; tests check that it and every line agree with them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

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


FIELDS = {
    "request_id": "`x-request-id`: the client's, or a generated one.",
    "trace_id": "The id of its trace, if any.",
    "client": "The client's address; behind `listen.trusted_proxies`, as they report it.",
    "caller": "The name of the API key.",
    "method": "The HTTP method.",
    "path": "The path without its query, if the endpoint does not identify it; only for authenticated clients.",
    "status": "The status that was sent; 499 if the client disconnected, or was cut off, before the end.",
    "error_code": "The `code` of the [error](errors.md), if nproxy refused the request itself; else see `outcome`.",
    "outcome": "`ok`, `partial`, `ended` by a shutdown, `slow_reader` if the client read nothing for"
    " `limits.write_seconds`, or the kind of failure that caused the error.",
    "client_left": "true if the client disconnected before the end of its answer.",
    "upstream": "The upstream that was called last.",
    "replicas": "The replicas that were called, each once, in the order of the first calls.",
    "model": "The model, named as in metrics: `other` if neither the configuration nor a model list has it.",
    "mode": "`x-nproxy-mode`: `relay`, `native` or `fanout`; or `passthrough`.",
    "n": "Choices requested per prompt.",
    "choices": "Choices in total: n for each prompt.",
    "legs": "`x-nproxy-legs`: upstream calls that share the choices, each counted once.",
    "attempts": "Upstream calls in total, retries and fallbacks included.",
    "finish_reasons": "The number of choices for each finish reason.",
    "prompt_tokens": "Prompt tokens as reported to the client, counted even if it did not ask for usage.",
    "completion_tokens": "Completion tokens of all choices, counted in the same way.",
    "queue_seconds": "Time that it waited for admission.",
    "first_token_seconds": "Time from the start of the request to the first piece of a stream.",
    "seconds": "Time from the request's head to the end of the answer.",
    "bytes_in": "Bytes of the request body that were read, as sent.",
    "bytes_out": "Bytes of the answer, head included.",
    "input": "The prompt; only with `telemetry.log_content`.",
    "output": "The answers; only with `telemetry.log_content`.",
}
"""What each says, in the order of the line, after `time`, `level`, `logger` and `message`, which is the endpoint."""


def log_request(exchange: Exchange) -> None:
    """Write the line; at debug level for health probes and scrapes, which come all the time."""
    level = logging.DEBUG if exchange.introspection else logging.INFO
    if access.isEnabledFor(level):
        access.handle(access_record(level, exchange.record.endpoint, fields(exchange)))


def fields(exchange: Exchange) -> dict[str, object]:
    """Return FIELDS, without those that are unknown or do not apply.

    Written out, because this runs for every request: a loop over all fields takes twice as long.
    """
    record, request = exchange.record, exchange.request
    line: dict[str, object] = {"request_id": exchange.id}
    if record.tracing.id:
        line["trace_id"] = record.tracing.id
    if record.client:
        line["client"] = record.client
    if exchange.caller.name:
        line["caller"] = exchange.caller.name
    line["method"] = request.method
    if path := exchange.unnamed_path:
        line["path"] = path[:LONGEST_PATH]
    line["status"] = record.code
    if record.error_code:
        line["error_code"] = record.error_code
    if record.outcome:
        line["outcome"] = record.outcome
    if record.client_left:
        line["client_left"] = True
    if record.upstream:
        line["upstream"] = record.upstream
    if record.replicas:
        line["replicas"] = list(record.replicas)
    if record.model:
        line["model"] = record.model
    if record.mode:
        line["mode"] = record.mode
    if record.n:
        line["n"] = record.n
        line["choices"] = record.choices
    if record.legs:
        line["legs"] = record.legs
    if record.attempts:
        line["attempts"] = record.attempts
    if record.finish_reasons:
        line["finish_reasons"] = _counted(record.finish_reasons)
    if record.prompt_tokens is not None:
        line["prompt_tokens"] = record.prompt_tokens
    if record.completion_tokens is not None:
        line["completion_tokens"] = record.completion_tokens
    if record.queue_seconds is not None:
        line["queue_seconds"] = _rounded(record.queue_seconds)
    if record.first_token_seconds is not None:
        line["first_token_seconds"] = _rounded(record.first_token_seconds)
    line["seconds"] = _rounded(record.seconds)
    line["bytes_in"] = request.content.total_bytes
    line["bytes_out"] = request.writer.output_size
    if record.content is not None:
        if prompt := record.content.input():
            line["input"] = prompt
        if answers := record.content.output():
            line["output"] = answers
    return line


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
