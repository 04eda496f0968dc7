"""Sending of spans to an OpenTelemetry collector: OTLP over HTTP, by OpenTelemetry's own SDK (`nproxy[otlp]`).

A thread sends the SDK's batches, so that a collector which is slow or down does not delay requests. The SDK's
environment variables (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_TIMEOUT` ...) apply.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal

from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace import Span as SdkSpan

from nproxy.telemetry.otlp_batches import Batches, Count
from nproxy.telemetry.trace_context import RANDOM, SAMPLED, TraceContext
from nproxy.telemetry.tracing import Attributes

PATH = "/v1/traces"
CLOSE_SECONDS = 2.0
"""How long the end of the process waits for spans that have not been sent."""

_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT}

log = logging.getLogger("nproxy.traces")


class OtlpTracer:
    """Sends spans to a collector at `endpoint`, a base URL. headers: sent with them; None for those of the environment.

    The sampler records everything: whoever begins a span has already decided that it is to be recorded.
    """

    def __init__(self, endpoint: str, headers: Mapping[str, str] | None, version: str, count: Count) -> None:
        self._provider = TracerProvider(ALWAYS_ON, _resource(version), shutdown_on_exit=False)
        self._provider.add_span_processor(Batches(endpoint.removesuffix(PATH) + PATH, headers, count))
        self._tracer = self._provider.get_tracer("nproxy", version)
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it would log every batch that fails

    def begin(
        self,
        name: str,
        kind: Literal["server", "client"],
        parent: TraceContext | None,
        attributes: Attributes,
        after: TraceContext | None = None,
    ) -> _Span:
        """See Tracer."""
        above = Context() if parent is None else set_span_in_context(NonRecordingSpan(_sdk_context(parent)), Context())
        links = () if after is None else (Link(_sdk_context(after)),)
        span = self._tracer.start_span(_utf8(name), above, _KINDS[kind], _clean(attributes), links)
        return _Span(span, parent)

    async def close(self) -> None:
        """See Tracer. A thread that still waits for the collector then ends with the process."""
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def close() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop is already closed
                loop.call_soon_threadsafe(closed.set)

        threading.Thread(target=close, name="nproxy-traces", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await closed.wait()
        except TimeoutError:
            log.warning("the last spans were not sent in time")


class _Span:
    """A span of the SDK with the interface of `tracing.Span`."""

    __slots__ = ("_span", "context")

    def __init__(self, span: SdkSpan, parent: TraceContext | None) -> None:
        self._span = span
        own = span.get_span_context()
        flags, state = (RANDOM, "") if parent is None else (parent.flags & RANDOM, parent.state)
        self.context = TraceContext(f"{own.trace_id:032x}", f"{own.span_id:016x}", flags | SAMPLED, state)

    def rename(self, name: str) -> None:
        self._span.update_name(_utf8(name))

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(_clean(attributes))

    def event(self, name: str, attributes: Attributes) -> None:
        self._span.add_event(name, _clean(attributes))

    def fail(self, error_type: str) -> None:
        self._span.set_attribute("error.type", error_type)
        self._span.set_status(Status(StatusCode.ERROR))

    def end(self, at: int | None = None) -> None:
        self._span.end(at)


def _resource(version: str) -> Resource:
    """Return the resource that describes the sender: nproxy, unless the environment gives another name."""
    named = OTELResourceDetector().detect().attributes
    ours = {"service.name": "nproxy", "service.version": version}
    return Resource.create({key: value for key, value in ours.items() if key not in named})


def _clean(attributes: Attributes) -> Attributes:
    """Return the attributes in valid UTF-8: one invalid text would cost the batch, and some come from clients."""
    return {name: _utf8(value) if isinstance(value, str) else value for name, value in attributes.items()}


def _utf8(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _sdk_context(context: TraceContext) -> SpanContext:
    return SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=bool(context.given),
        trace_flags=TraceFlags(context.flags),
        trace_state=TraceState.from_header([context.state] if context.state else []),
    )
