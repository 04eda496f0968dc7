"""One request as spans: a server's for the request, and beneath it a client's for each upstream call.

Attributes are named by OpenTelemetry's conventions for HTTP and for generative AI; what these do not know is
`nproxy.*`. docs/guides/tracing.md lists them. No prompt, answer, key or query string is among them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from nproxy.choices.events import Failure
from nproxy.choices.leg import Leg
from nproxy.choices.plan import Request
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import JSON
from nproxy.telemetry.trace_context import TraceContext
from nproxy.telemetry.tracing import Attributes, Span, Tracer, Value
from nproxy.upstreams.forward import ForwardError
from nproxy.upstreams.replicas import Replica

PROVIDER = "openai"
"""Whose wire is spoken, which is what `gen_ai.provider.name` tells readers of spans; who serves it is not known."""

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
"""Numbers of a request's body, and the attributes that they become."""

LONGEST_NAME = 256
"""Of a model, in characters: spans wait in memory, which no limit of requests counts."""
_INT64 = range(-(2**63), 2**63)


@dataclass(slots=True)
class _Call:
    """An upstream call. indices: of the choices it brings. sent: when, in monotonic seconds. ended: in Unix ns."""

    span: Span
    indices: frozenset[int]
    sent: float | None = None
    ended: int | None = None
    reasons: dict[int, str] = field(default_factory=dict)


class Spans:
    """The spans of one request that is recorded. `end` once; the calls at one upstream end with `left_upstream`.

    Calls are named by the numbers of their legs. One that is made again is a span of its own, linked to the one before.
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
        """What is asked for is known."""
        operation, fields = _OPERATIONS[request.dialect], request.body.fields
        told: dict[str, Value] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": request.model[:LONGEST_NAME],
            "gen_ai.request.stream": request.stream,
        }
        if request.n != 1:
            told["gen_ai.request.choice.count"] = request.n
        if _asks_for_json(fields.get("response_format")):
            told["gen_ai.output.type"] = "json"
        told |= {name: value for key, name in _ASKED.items() if (value := _number(fields.get(key))) is not None}
        self.request.set(told)
        self._wanted, self._prompts = request.n, request.prompts
        self._common = {"gen_ai.operation.name": operation, "gen_ai.provider.name": PROVIDER}

    def admitted(self, choices: int, seconds: float) -> None:
        """The request was let in after so long."""
        self.request.event("nproxy.admitted", {"nproxy.choices": choices, "nproxy.queue_seconds": seconds})

    def to_upstream(self, upstream: str, model: str, n: int) -> None:
        """Calls go to this upstream from now on, which knows the model so; n choices per prompt are to be brought."""
        self._n = n
        shown = model[:LONGEST_NAME]
        self._name = f"{self._common['gen_ai.operation.name']} {shown}"
        self._common = {**self._common, "gen_ai.request.model": shown, "nproxy.upstream": upstream}

    # ---- calls

    def leg_opened(self, leg: Leg, attempt: int) -> None:
        """The call of a leg begins with its wait for a replica."""
        told: dict[str, Value] = {
            **self._common,
            "nproxy.leg": leg.number,
            "nproxy.offset": leg.client_index(0, self._n),
            "nproxy.width": leg.width,
            "nproxy.attempt": attempt,
        }
        if leg.width != 1:
            told["gen_ai.request.choice.count"] = leg.width
        if leg.seed is not None:
            told["gen_ai.request.seed"] = leg.seed
        self._open(leg.number, self._name, told, frozenset(leg.client_indices(self._n, self._prompts)))

    @contextmanager
    def forwarding(self, upstream: str, method: str) -> Iterator[None]:
        """A call that passes on what nproxy does not understand, and has the number 0, runs with the block."""
        attempt = len(self._former) + len(self._calls)
        self._open(0, method, {"nproxy.upstream": upstream, "nproxy.attempt": attempt, "http.request.method": method})
        try:
            yield
        except ForwardError as error:
            self.call_ended(0, error.failure)
            raise
        self._calls[0].ended = time.time_ns()

    def _open(self, number: int, name: str, told: Attributes, indices: frozenset[int] = frozenset()) -> None:
        before = self._calls.get(number)
        if before is not None:
            self._former.append(before)
        after = None if before is None else before.span.context
        span = self._tracer.begin(name, "client", self.request.context, told, after)
        self._calls[number] = _Call(span, indices)

    def context(self, number: int) -> TraceContext:
        """What the server is told of a call."""
        return self._calls[number].span.context

    def placed(self, number: int, replica: Replica) -> None:
        """A call has its replica, and is sent."""
        call = self._calls[number]
        call.sent = time.monotonic()
        url = replica.url("")
        where: Attributes = {"server.address": url.host or "", "server.port": url.port or 0}
        if replica.socket is not None:
            where = {"server.address": str(replica.socket), "network.transport": "unix"}
        call.span.set({"nproxy.replica": replica.label, **where})
        call.span.event("nproxy.sent", {"nproxy.replica": replica.label})

    def spoke(self, number: int) -> None:
        """The first piece of a streamed answer has come."""
        call = self._calls[number]
        if call.sent is not None:
            call.span.set({"gen_ai.response.time_to_first_chunk": time.monotonic() - call.sent})

    def call_ended(self, number: int, failure: Failure | None) -> None:
        """What became of a call."""
        call = self._calls[number]
        call.ended = time.time_ns()
        call.span.set({"nproxy.outcome": "ok" if failure is None else failure.kind.value})
        if failure is not None and failure.status is not None:
            self.answered(number, failure.status)
        elif failure is not None:
            call.span.fail(failure.kind.value)

    def answered(self, number: int, status: int) -> None:
        """The status of a call's answer."""
        span = self._calls[number].span
        span.set({"http.response.status_code": status})
        if status >= 400:
            span.fail(str(status))

    def left_upstream(self) -> None:
        """No call is wanted any more at this upstream."""
        for call in (*self._former, *self._calls.values()):
            if call.ended is None:
                call.span.set({"nproxy.outcome": "cancelled"})
            if call.reasons:
                call.span.set({"gen_ai.response.finish_reasons": _in_order(call.reasons)})
            call.span.end(call.ended)
        self._former, self._calls = [], {}

    # ---- the request

    def retried(self, number: int, reason: str) -> None:
        self.request.event("nproxy.retry", {"nproxy.leg": number, "nproxy.reason": reason})

    def resumed(self, number: int, how: str, outcome: str) -> None:
        told: Attributes = {"nproxy.leg": number, "nproxy.how": how, "nproxy.outcome": outcome}
        self.request.event("nproxy.resume", told)

    def choice_finished(self, index: int, reason: str) -> None:
        """A choice of the client's has ended; of more than it wanted, nobody knows which call brought it."""
        if self._n <= self._wanted:
            for call in self._calls.values():
                if index in call.indices:
                    call.reasons[index] = reason

    def finish_reasons(self, reasons: Mapping[int, str]) -> None:
        """How all choices ended, by their indices."""
        if reasons:
            self.request.set({"gen_ai.response.finish_reasons": _in_order(reasons)})


def _in_order(reasons: Mapping[int, str]) -> list[str]:
    return [reasons[index] for index in sorted(reasons)]


def _number(value: JSON) -> int | float | None:
    """A number as an attribute can carry it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, float) or value in _INT64 else None


def _asks_for_json(form: JSON) -> bool:
    return isinstance(form, dict) and form.get("type") in ("json_object", "json_schema")
