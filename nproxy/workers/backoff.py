"""The backoff before a process that has died is started again."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a restart: the first pause, and the longest that doubling reaches."""
STEADY_SECONDS = 60.0
"""If a process has lived longer than this, the pauses start anew when it dies."""


@dataclass(slots=True)
class Backoff:
    """The pauses between the processes of one slot. pause: the next one, in seconds."""

    pause: float = field(default_factory=lambda: FIRST_PAUSE)

    def after(self, lived: float) -> float:
        """Return the seconds to wait after a process lived for `lived` seconds, and double the next pause."""
        pause = FIRST_PAUSE if lived > STEADY_SECONDS else self.pause
        self.pause = min(2 * pause, LONGEST_PAUSE)
        return pause
