"""The interface for reports on a whole gateway, of one or of several processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from nproxy.telemetry.sums import Report


class AllProcesses(Protocol):
    """Reports for all processes together. Raises ApiError 503 if it cannot."""

    async def report(self) -> Report:
        """Return the sums of all metrics, with the built-in engine's."""

    async def status(self) -> Mapping[str, object]:
        """Return the content of /status."""
