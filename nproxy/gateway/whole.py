"""Who speaks for a gateway, be it of several processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from nproxy.telemetry.sums import Report


class Whole(Protocol):
    """What all its processes together tell. Raises ApiError 503 where nobody knows."""

    async def report(self) -> Report:
        """All metrics, added up, the built-in engine's among them."""

    async def status(self) -> Mapping[str, object]:
        """What /status tells."""
