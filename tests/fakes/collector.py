"""A trace collector: a real HTTP server on loopback that accepts OTLP as protobuf, like OpenTelemetry's own.

async with Collector() as collector:
    ...                                  # telemetry: {otlp_endpoint: collector.url}
collector.spans                          # the received spans, decoded
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclass(frozen=True)
class Span:
    """A span as it was received."""

    name: str
    kind: str
    """SERVER or CLIENT."""
    trace_id: str
    id: str
    parent: str
    state: str
    """The trace state."""
    attributes: Mapping[str, Any]
    events: list[tuple[str, Mapping[str, Any]]]
    """Names with attributes."""
    links: list[str]
    """Ids of spans."""
    failed: bool
    seconds: float
    resource: Mapping[str, Any]

    def event(self, name: str) -> Mapping[str, Any]:
        """The attributes of its only event with this name."""
        (found,) = [attributes for told, attributes in self.events if told == name]
        return found


@dataclass
class Collector:
    """The collector. Tests set the first three fields; the others hold what it received."""

    hold: asyncio.Event | None = None
    """Answers wait for this event."""
    status: int = 200
    """Status of its answers."""
    rejects: int = 0
    """It rejects so many spans of each export."""
    spans: list[Span] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    """Bodies of the exports, decompressed."""
    headers: list[Mapping[str, str]] = field(default_factory=list)
    """Headers of each export."""
    targets: list[str] = field(default_factory=list)
    """Method and path of each export."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once an export has arrived."""
    url: str = ""

    async def __aenter__(self) -> Self:
        self._http = web.Server(self._handle, access_log=None)
        self._server = await asyncio.get_running_loop().create_server(self._http, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._http.pre_shutdown()
        await self._http.shutdown(0.1)
        await self._server.wait_closed()

    @property
    def server(self) -> Span:
        """The only span of kind SERVER."""
        (span,) = [span for span in self.spans if span.kind == "SERVER"]
        return span

    @property
    def calls(self) -> list[Span]:
        """The spans of upstream calls, by leg and attempt."""
        calls = [span for span in self.spans if span.kind == "CLIENT"]
        return sorted(calls, key=lambda span: (span.attributes.get("nproxy.leg", 0), span.attributes["nproxy.attempt"]))

    async def _handle(self, request: BaseRequest) -> StreamResponse:
        body = await request.read()
        self.targets.append(f"{request.method} {request.path_qs}")
        self.headers.append(request.headers.copy())
        self.asked.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.status == 200:
            self._take(gzip.decompress(body) if request.headers.get("content-encoding") == "gzip" else body)
        partly = ExportTracePartialSuccess(rejected_spans=self.rejects) if self.rejects else None
        answer = ExportTraceServiceResponse(partial_success=partly).SerializeToString()
        return web.Response(status=self.status, body=answer, content_type="application/x-protobuf")

    def _take(self, body: bytes) -> None:
        self.raw.append(body)
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _attributes(group.resource.attributes)
            self.spans += [_span(span, resource) for scope in group.scope_spans for span in scope.spans]


def _span(span: WireSpan, resource: Mapping[str, Any]) -> Span:
    return Span(
        name=span.name,
        kind=WireSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        state=span.trace_state,
        attributes=_attributes(span.attributes),
        events=[(event.name, _attributes(event.attributes)) for event in span.events],
        links=[link.span_id.hex() for link in span.links],
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        resource=resource,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    told: list[KeyValue] = list(pairs)
    return {pair.key: _value(pair.value) for pair in told}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return None if kind is None else getattr(value, kind)
