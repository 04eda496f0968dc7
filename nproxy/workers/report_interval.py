"""How often a worker sends its metrics unasked: less often if that takes long."""

from __future__ import annotations

SHARE = 0.01
"""The share of a worker's time that this may take."""


class ReportInterval:
    """Decides when metrics are due. Call `took` after each report. Times in seconds, by any one clock."""

    def __init__(self) -> None:
        self._next = 0.0

    def due(self, now: float) -> bool:
        """Whether a report is due."""
        return now >= self._next

    def took(self, began: float, ended: float) -> None:
        """Note that metrics were sent, whether or not they were asked for."""
        self._next = ended + (ended - began) / SHARE
