"""What a tracer is to the gateway. The one that there is, `otlp`, needs packages which not every installation has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from nproxy.telemetry.trace_context import TraceContext

Value = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Value]


class Span(Protocol):
    """A piece of work that is being recorded. `end` once."""

    @property
    def context(self) -> TraceContext:
        """What those are told who are called in it."""

    def rename(self, name: str) -> None:
        """Call it otherwise, as more is known of it."""

    def set(self, attributes: Attributes) -> None:
        """Say more of it."""

    def event(self, name: str, attributes: Attributes) -> None:
        """Something happened in it, now."""

    def fail(self, error_type: str) -> None:
        """It came to nothing; the type is a word of a small set, or a status."""

    def end(self, at: int | None = None) -> None:
        """It is over, or was at this time, in nanoseconds of Unix time."""


class Tracer(Protocol):
    """Makes spans, all of which are recorded, and sends them away in a thread of its own."""

    def begin(
        self,
        name: str,
        kind: Literal["server", "client"],
        parent: TraceContext | None,
        attributes: Attributes,
        after: TraceContext | None = None,
    ) -> Span:
        """Begin a span, in a new trace where there is no parent. after: another that this one is made again for."""

    async def close(self) -> None:
        """Send what is left, as far as that takes no long time."""
