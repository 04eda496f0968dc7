"""The interface of tracers. The only implementation, `otlp`, needs packages that not every installation has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from nproxy.telemetry.trace_context import TraceContext

Value = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Value]


class Span(Protocol):
    """A piece of work that is being recorded. Call `end` once."""

    @property
    def context(self) -> TraceContext:
        """The context to send with calls that are made within the span."""

    def rename(self, name: str) -> None:
        """Change the name, once more is known."""

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""

    def event(self, name: str, attributes: Attributes) -> None:
        """Record an event that happens now."""

    def fail(self, error_type: str) -> None:
        """Mark the span as failed; the type is a word of a small set, or a status."""

    def end(self, at: int | None = None) -> None:
        """End the span, now or at a time in nanoseconds of Unix time."""


class Tracer(Protocol):
    """Creates spans, all of which are recorded, and sends them in a thread of its own."""

    def begin(
        self,
        name: str,
        kind: Literal["server", "client"],
        parent: TraceContext | None,
        attributes: Attributes,
        after: TraceContext | None = None,
    ) -> Span:
        """Begin a span, in a new trace if there is no parent. after: the earlier span that this one repeats."""

    async def close(self) -> None:
        """Send what is left, as far as that does not take long."""
