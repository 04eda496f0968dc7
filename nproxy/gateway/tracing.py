"""A request's trace: that of its caller if it names one, else a new one if traces are exported.

If traces are not exported, nproxy only forwards the caller's trace context to upstreams, unless it is malformed. If
they are exported, the caller decides whether its trace is recorded; of requests without a trace, a share is recorded.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from aiohttp.web_request import BaseRequest

from nproxy.gateway.spans import Spans
from nproxy.telemetry.exemplars import Trace
from nproxy.telemetry.trace_context import TraceContext, read, unrecorded
from nproxy.telemetry.tracing import Tracer

TRACE_HEADERS = ("traceparent", "tracestate")
"""The headers of W3C Trace Context, which are written anew for every call."""
_NONE: Mapping[str, str] = {}


class Tracing:
    """The trace of one request. context: None if there is no trace. spans: None if nothing is recorded.

    id: the trace's; "" if there is none. exemplar: the trace as labels for metrics, if nproxy or its caller records it;
    else None.
    """

    __slots__ = ("context", "exemplar", "id", "spans")

    def __init__(self, context: TraceContext | None = None, spans: Spans | None = None) -> None:
        self.context = context
        self.spans = spans
        self.id = "" if context is None else context.trace_id
        self.exemplar: Trace | None = {"trace_id": self.id} if context is not None and context.sampled else None

    def headers(self, call: int) -> Mapping[str, str]:
        """Return the trace headers of an upstream call. call: the number of its leg."""
        if self.spans is not None:
            return self.spans.context(call).headers
        return _NONE if self.context is None else self.context.headers


UNTRACED = Tracing()
"""Used for requests about the gateway itself, and if there is no trace."""


def begin(request: BaseRequest, tracer: Tracer | None, ratio: float) -> Tracing:
    """Read the caller's trace context, and begin the request's span if it is to be recorded.

    tracer: None if traces are not exported. ratio: the share that is recorded of requests without a caller's trace.
    """
    parents = request.headers.getall("traceparent", ())
    given = read(parents, request.headers.getall("tracestate", ())) if parents else None
    if tracer is None:
        return UNTRACED if given is None else Tracing(given)
    if not (random.random() < ratio if given is None else given.sampled):
        return Tracing(given or unrecorded())
    span = tracer.begin(request.method, "server", given, {"http.request.method": request.method})
    return Tracing(span.context, Spans(tracer, span))
