"""Batches of spans: bounded, counted, and sent by a thread of the SDK; and how the collector answered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import requests
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from prometheus_client import Counter

MOST_WAITING = 4096
"""Maximum number of spans that wait to be sent; beyond it, new ones are dropped and counted."""
MOST_AT_ONCE = 512
MOST_WAITING_BYTES = 64 << 20
"""Maximum size of all waiting spans: with prompts and answers in them, a few thousand would take gigabytes."""
MOST_BYTES_AT_ONCE = 8 << 20
"""Maximum size of one export: collectors refuse a request that is too long as a whole (OpenTelemetry's limit is 20 MiB
by default)."""

Count = Callable[[str], Counter]
"""Returns the counter of spans with an outcome: exported, failed or dropped. Called from any thread."""

log = logging.getLogger("nproxy.traces")


class Batches(SpanProcessor):
    """The SDK's batch processor with counters: how many spans were sent, failed, or dropped for lack of space.

    Two threads count, each in variables of its own: the thread that ends spans, and the thread that sends them.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None, count: Count) -> None:
        self._exporter = _Exporter(url, headers, count)
        self._batches = BatchSpanProcessor(self._exporter, MOST_WAITING, max_export_batch_size=MOST_AT_ONCE)
        self._count = count
        self._given = self._given_bytes = 0

    def on_end(self, span: ReadableSpan) -> None:
        """Put a span into a batch, or count it as dropped if too many wait."""
        size, waiting = _size(span), self._given_bytes - self._exporter.taken_bytes
        if self._given - self._exporter.taken >= MOST_WAITING or waiting + size > MOST_WAITING_BYTES:
            self._count("dropped").inc()
            return
        self._given += 1
        self._given_bytes += size
        self._batches.on_end(span)

    def shutdown(self) -> None:
        """Send what is left."""
        self._batches.shutdown()  # type: ignore[no-untyped-call]


class _Exporter(SpanExporter):
    """The SDK's exporter with counts of successes and failures; logs when the outcome changes, and why."""

    def __init__(self, url: str, headers: Mapping[str, str] | None, count: Count) -> None:
        self.taken = self.taken_bytes = 0
        self._heard = _Session()
        self._exporter = OTLPSpanExporter(url, headers=headers, session=self._heard)
        self._count = count
        self._well = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        self.taken_bytes += sum(map(_size, spans))
        results = [self._export(part) for part in _parts(spans)]
        return next((result for result in results if result is not SpanExportResult.SUCCESS), SpanExportResult.SUCCESS)

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._heard.forget()
        try:
            result = self._exporter.export(spans)
        except Exception:
            log.debug("spans could not be sent", exc_info=True)
            result = SpanExportResult.FAILURE
        went = result is SpanExportResult.SUCCESS and not self._heard.elsewhere
        failed = min(self._heard.rejected, len(spans)) if went else len(spans)
        self._count("exported").inc(len(spans) - failed)
        self._count("failed").inc(failed)
        self._tell(well=not failed)
        return result

    def _tell(self, *, well: bool) -> None:
        if well == self._well:
            return
        self._well = well
        if well:
            log.info("the collector accepts spans again")
        else:
            log.warning("the collector does not accept spans", extra={"fields": {"why": self._heard.why}})


class _Session(requests.Session):
    """The exporter's HTTP session, which remembers the collector's last answer.

    The exporter itself tells it only to the SDK's log.

    elsewhere: the collector redirected to another URL, which the exporter takes for a success. rejected: the number of
    rejected spans of an accepted request. why: a status, or the kind of fault that prevented one; "" if nothing was
    sent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        """Reset for another batch."""
        self.why, self.rejected, self.elsewhere = "", 0, False

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        """See requests."""
        self.forget()
        try:
            response = super().send(request, **kwargs)
        except requests.RequestException as error:
            self.why = type(error).__name__
            raise
        self.why, self.elsewhere = str(response.status_code), 300 <= response.status_code < 400
        if response.status_code == 200:
            self._read(response.content)
        return response

    def _read(self, answer: bytes) -> None:
        """Read how many spans of an accepted request were rejected (OTLP specification, Partial Success)."""
        try:
            self.rejected = ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans
        except DecodeError:
            return
        if self.rejected:
            self.why = "some were rejected"


def _size(span: ReadableSpan) -> int:
    """Return roughly how many bytes a span takes: only the texts in its attributes can be long."""
    return 512 + sum(len(value) for value in (span.attributes or {}).values() if isinstance(value, str))


def _parts(spans: Sequence[ReadableSpan]) -> Iterator[Sequence[ReadableSpan]]:
    """Split spans into exports, each of at most MOST_BYTES_AT_ONCE, or of a single span."""
    part: list[ReadableSpan] = []
    length = 0
    for span in spans:
        size = _size(span)
        if part and length + size > MOST_BYTES_AT_ONCE:
            yield part
            part, length = [], 0
        part.append(span)
        length += size
    if part:
        yield part
