"""The spans of one request: a server span for the request, and below it a client span for each upstream call.

Attributes follow OpenTelemetry's conventions for HTTP and for generative AI; others are named `nproxy.*`.
docs/guides/tracing.md lists them. They contain no prompt, answer, key or query string.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from nproxy.choices.events import Failure
from nproxy.choices.leg import Leg
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.requests import Request
from nproxy.telemetry.trace_context import TraceContext
from nproxy.telemetry.tracing import Attributes, Span, Tracer, Value
from nproxy.upstreams.forward import ForwardError
from nproxy.upstreams.replicas import Replica

PROVIDER = "openai"
"""The value of `gen_ai.provider.name`, which tells readers whose wire format is used. The real server is unknown."""

_OPERATIONS = {Dialect.CHAT: "chat", Dialect.COMPLETIONS: "text_completion"}

_ASKED: Mapping[str, str] = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}
"""Numeric fields of a request's body, and their span attributes."""

LONGEST_NAME = 256
"""The most characters of a model's name: waiting spans use memory that no limit on requests counts."""
_INT64 = range(-(2**63), 2**63)


@dataclass(slots=True)
class _Call:
    """An upstream call and its span."""

    span: Span
    """The call's span."""
    indices: frozenset[int]
    """The client's indices of the choices that it brings."""
    sent: float | None = None
    """When it was sent, by `time.monotonic`."""
    ended: int | None = None
    """When it ended, in Unix nanoseconds."""
    reasons: dict[int, str] = field(default_factory=dict)
    """The finish reasons of its choices, by index."""


class Spans:
    """The spans of one recorded request. `left_upstream` ends the spans of the calls at one upstream.

    Calls are identified by the numbers of their legs. A retry has its own span, which is linked to the previous one.
    """

    def __init__(self, tracer: Tracer, request: Span) -> None:
        self.request = request
        self._tracer = tracer
        self._common: Attributes = {}
        self._name = ""
        self._n = self._wanted = self._prompts = 1
        self._calls: dict[int, _Call] = {}
        self._former: list[_Call] = []

    def asked(self, request: Request) -> None:
        """Note what the client asks for."""
        operation, fields = _OPERATIONS[request.dialect], request.body.fields
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": request.model[:LONGEST_NAME],
            "gen_ai.request.stream": request.stream,
        }
        if request.n != 1:
            attributes["gen_ai.request.choice.count"] = request.n
        if _asks_for_json(fields.get("response_format")):
            attributes["gen_ai.output.type"] = "json"
        attributes |= {name: value for key, name in _ASKED.items() if (value := _number(fields.get(key))) is not None}
        self.request.set(attributes)
        self._wanted, self._prompts = request.n, request.prompts
        self._common = {"gen_ai.operation.name": operation, "gen_ai.provider.name": PROVIDER}

    def admitted(self, choices: int, seconds: float) -> None:
        """Note that the request was admitted, after waiting for so many seconds."""
        self.request.event("nproxy.admitted", {"nproxy.choices": choices, "nproxy.queue_seconds": seconds})

    def to_upstream(self, upstream: str, model: str, n: int) -> None:
        """Note the upstream of the following calls. model: its name there. n: choices per prompt in the plan."""
        self._n = n
        shown = model[:LONGEST_NAME]
        self._name = f"{self._common['gen_ai.operation.name']} {shown}"
        self._common = {**self._common, "gen_ai.request.model": shown, "nproxy.upstream": upstream}

    # ---- calls

    def leg_opened(self, leg: Leg, attempt: int) -> None:
        """Begin the span of a leg's call, which includes its wait for a replica."""
        attributes: dict[str, Value] = {
            **self._common,
            "nproxy.leg": leg.number,
            "nproxy.offset": leg.client_index(0, self._n),
            "nproxy.width": leg.width,
            "nproxy.attempt": attempt,
        }
        if leg.width != 1:
            attributes["gen_ai.request.choice.count"] = leg.width
        if leg.seed is not None:
            attributes["gen_ai.request.seed"] = leg.seed
        self._open(leg.number, self._name, attributes, frozenset(leg.client_indices(self._n, self._prompts)))

    @contextmanager
    def forwarding(self, upstream: str, method: str) -> Iterator[None]:
        """Record a call that passes a request through, with the number 0, while the block runs."""
        attempt = len(self._former) + len(self._calls)
        self._open(0, method, {"nproxy.upstream": upstream, "nproxy.attempt": attempt, "http.request.method": method})
        try:
            yield
        except ForwardError as error:
            self.call_ended(0, error.failure)
            raise
        self._calls[0].ended = time.time_ns()

    def _open(self, number: int, name: str, attributes: Attributes, indices: frozenset[int] = frozenset()) -> None:
        before = self._calls.get(number)
        if before is not None:
            self._former.append(before)
        after = None if before is None else before.span.context
        span = self._tracer.begin(name, "client", self.request.context, attributes, after)
        self._calls[number] = _Call(span, indices)

    def context(self, number: int) -> TraceContext:
        """Return the trace context that a call carries to the server."""
        return self._calls[number].span.context

    def assigned(self, number: int, replica: Replica) -> None:
        """Note that a call has its replica, and is sent."""
        call = self._calls[number]
        call.sent = time.monotonic()
        url = replica.url("")
        where: Attributes = {"server.address": url.host or "", "server.port": url.port or 0}
        if replica.socket is not None:
            where = {"server.address": str(replica.socket), "network.transport": "unix"}
        call.span.set({"nproxy.replica": replica.label, **where})
        call.span.event("nproxy.sent", {"nproxy.replica": replica.label})

    def spoke(self, number: int) -> None:
        """Note that the first chunk of a streamed answer has come."""
        call = self._calls[number]
        if call.sent is not None:
            call.span.set({"gen_ai.response.time_to_first_chunk": time.monotonic() - call.sent})

    def call_ended(self, number: int, failure: Failure | None) -> None:
        """Note the result of a call. failure: None if it succeeded."""
        call = self._calls[number]
        call.ended = time.time_ns()
        call.span.set({"nproxy.outcome": "ok" if failure is None else failure.kind.value})
        if failure is not None and failure.status is not None:
            self.answered(number, failure.status)
        elif failure is not None:
            call.span.fail(failure.kind.value)

    def answered(self, number: int, status: int) -> None:
        """Note the status of a call's answer."""
        span = self._calls[number].span
        span.set({"http.response.status_code": status})
        if status >= 400:
            span.fail(str(status))

    def left_upstream(self) -> None:
        """End the spans of all calls at this upstream. Calls that have not ended count as cancelled."""
        for call in (*self._former, *self._calls.values()):
            if call.ended is None:
                call.span.set({"nproxy.outcome": "cancelled"})
            if call.reasons:
                call.span.set({"gen_ai.response.finish_reasons": _in_order(call.reasons)})
            call.span.end(call.ended)
        self._former, self._calls = [], {}

    # ---- the request

    def retried(self, number: int, reason: str) -> None:
        """Note that a leg will be called again, and why."""
        self.request.event("nproxy.retry", {"nproxy.leg": number, "nproxy.reason": reason})

    def resumed(self, number: int, how: str, outcome: str) -> None:
        """Note how a leg that broke off was resumed, and what came of it."""
        attributes: Attributes = {"nproxy.leg": number, "nproxy.how": how, "nproxy.outcome": outcome}
        self.request.event("nproxy.resume", attributes)

    def choice_finished(self, index: int, reason: str) -> None:
        """Note that a choice of the client has ended.

        If more choices are planned than the client gets, it is unknown which call brought it, and nothing is noted.
        """
        if self._n <= self._wanted:
            for call in self._calls.values():
                if index in call.indices:
                    call.reasons[index] = reason

    def finish_reasons(self, reasons: Mapping[int, str]) -> None:
        """Set the finish reasons of all choices on the request's span. reasons: by index."""
        if reasons:
            self.request.set({"gen_ai.response.finish_reasons": _in_order(reasons)})


def _in_order(reasons: Mapping[int, str]) -> list[str]:
    return [reasons[index] for index in sorted(reasons)]


def _number(value: JSON) -> int | float | None:
    """Return a number that an attribute can hold (a 64-bit integer or a float), else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, float) or value in _INT64 else None


def _asks_for_json(form: JSON) -> bool:
    return isinstance(form, dict) and form.get("type") in ("json_object", "json_schema")
