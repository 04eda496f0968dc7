"""A request's place in a trace: its caller's where that named one, else a new one's where traces are exported.

Where they are not, nproxy takes no part: what a caller said goes on to upstreams as it came, and what is malformed does
not. Where they are, a caller's word on whether a trace is recorded holds, and of others a share is recorded.
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
"""Those of W3C Trace Context, which are written anew for every call."""
_NONE: Mapping[str, str] = {}


class Tracing:
    """context: None where there is no trace. spans: None where nothing is recorded."""

    __slots__ = ("context", "spans")

    def __init__(self, context: TraceContext | None = None, spans: Spans | None = None) -> None:
        self.context = context
        self.spans = spans

    @property
    def id(self) -> str:
        """The trace's id, "" where there is none."""
        return "" if self.context is None else self.context.trace_id

    @property
    def exemplar(self) -> Trace | None:
        """The trace as metrics name it, where somebody records it, be it the caller alone."""
        return {"trace_id": self.context.trace_id} if self.context is not None and self.context.sampled else None

    def headers(self, call: int) -> Mapping[str, str]:
        """What an upstream is told in a call, by its number."""
        if self.spans is not None:
            return self.spans.context(call).headers
        return _NONE if self.context is None else self.context.headers


UNTRACED = Tracing()
"""Of requests that are about the gateway itself, and where nobody traces."""


def begin(request: BaseRequest, tracer: Tracer | None, ratio: float) -> Tracing:
    """Read what the caller says, and begin the request's span where it is to be recorded.

    ratio: of requests whose caller names no trace, the share that is recorded.
    """
    parents = request.headers.getall("traceparent", ())
    given = read(parents, request.headers.getall("tracestate", ())) if parents else None
    if tracer is None:
        return UNTRACED if given is None else Tracing(given)
    if not (random.random() < ratio if given is None else given.sampled):
        return Tracing(given or unrecorded())
    span = tracer.begin(request.method, "server", given, {"http.request.method": request.method})
    return Tracing(span.context, Spans(tracer, span))
