"""How long to wait before a process that has died is started again."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a restart: the first, and where doubling ends."""
STEADY_SECONDS = 60.0
"""A process that has lived so long starts the pauses anew when it dies."""


@dataclass(slots=True)
class Backoff:
    """The pauses of one place where processes are started. pause: the next one, in seconds."""

    pause: float = field(default_factory=lambda: FIRST_PAUSE)

    def after(self, lived: float) -> float:
        """Seconds to wait after a life of `lived` seconds; the next pause is twice as long."""
        pause = FIRST_PAUSE if lived > STEADY_SECONDS else self.pause
        self.pause = min(2 * pause, LONGEST_PAUSE)
        return pause
