"""Who speaks for a gateway, be it of several processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Whole(Protocol):
    """What all its processes together tell. Raises ApiError 503 where nobody knows."""

    async def exposition(self) -> bytes:
        """All metrics, added up, in the Prometheus text format."""

    async def status(self) -> Mapping[str, object]:
        """What /status tells."""
