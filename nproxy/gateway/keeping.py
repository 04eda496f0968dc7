"""An exchange whose prompt and answer are kept; used only if `telemetry.log_content` is set."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field

from nproxy.gateway.content import Content
from nproxy.gateway.exchange import NO_HEADERS, Exchange


@dataclass(slots=True, eq=False)
class KeepingExchange(Exchange):
    """An exchange that keeps what it writes, up to the limit of Content."""

    kept: Content = field(default_factory=Content)
    """The content of its record."""

    def __post_init__(self) -> None:
        self.record.content = self.kept

    def respond(
        self, status: int, body: bytes, headers: Mapping[str, str] = NO_HEADERS, content_type: str = "application/json"
    ) -> Awaitable[None]:
        """See Exchange."""
        self.kept.add(body)
        return Exchange.respond(self, status, body, headers, content_type)

    def write(self, data: bytes) -> Awaitable[None]:
        """See Exchange."""
        self.kept.add(data)
        return Exchange.write(self, data)

    def write_now(self, data: bytes) -> bool:
        """See Exchange."""
        written = Exchange.write_now(self, data)
        if written:
            self.kept.add(data)
        return written

    def finish(self, data: bytes = b"") -> Awaitable[None]:
        """See Exchange."""
        self.kept.add(data)
        return Exchange.finish(self, data)
