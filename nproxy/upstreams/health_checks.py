"""How a replica looks while nobody calls it: what looks at it have shown, and when the next one is due.

Pure: time is an argument, in seconds that never go back; `looking` does it.
"""

from __future__ import annotations

from math import inf

from nproxy.config import Health as Settings

AGAIN_SECONDS = 1.0
"""A look that contradicts what is believed is followed by the next one so soon, until the one or the other holds."""
SILENT_SECONDS = 2.0
"""A replica that has calls and says nothing for so long is looked at out of turn.

A stopped server goes on to accept connections, so nothing else shows it before the calls' own limits, which leave a
slow model its time. A busy one answers the look, and is looked at more and more seldom while its silence lasts.
"""


class HealthChecks:
    """What looks at one replica have shown. The first look is due at once.

    down: so many failed in a row that it gets no calls. doubtful: the last one failed, so that others are preferred.
    answered: the last one got an answer, be it a bad one; None before the first.
    """

    __slots__ = (
        "_due",
        "_heard_at",
        "_in_a_row",
        "_last",
        "_patience",
        "_settings",
        "_silent_since",
        "answered",
        "down",
    )

    def __init__(self, settings: Settings) -> None:
        self.down = False
        self.answered: bool | None = None
        self._settings = settings
        self._in_a_row = 0  # looks that contradict `down`
        self._last = -inf  # when the last look began
        self._due = -inf
        self._heard_at = -inf
        self._silent_since = inf
        self._patience = SILENT_SECONDS

    @property
    def doubtful(self) -> bool:
        return self.down or self._in_a_row > 0

    def due(self) -> float:
        """When the next look is due; infinity where there are none."""
        if self._settings.interval is None:
            return inf
        return min(self._due, self._silent_since + self._patience)

    def began(self, now: float, jitter: float) -> None:
        """Note that a look begins. jitter: from 0 up to 1; the next one is due in 0.9 to 1.1 intervals."""
        self._last = now
        self._due = now + (self._settings.interval or inf) * (0.9 + 0.2 * jitter)
        if self._silent_since < inf:
            self._silent_since = now
            self._patience = min(2 * self._patience, max(SILENT_SECONDS, self._settings.interval or inf))

    def ended(self, *, well: bool, answered: bool = True) -> bool:
        """Count a look; True where it changed `down`.

        answered: an answer came, be it a bad one. Where none did and calls brought something meanwhile, the replica is
        busy, and the look says nothing.
        """
        self.answered = answered
        if not answered and self.talked_over:
            return False
        if well is not self.down:
            self._in_a_row = 0
            return False
        self._in_a_row += 1
        self._due = self._last + AGAIN_SECONDS
        if self._in_a_row < (self._settings.up_after if self.down else self._settings.down_after):
            return False
        self.down = not self.down
        self._in_a_row = 0
        return True

    @property
    def talked_over(self) -> bool:
        """Whether calls brought something since the last look began."""
        return self._heard_at >= self._last

    def note_peer_check(self, began: float, jitter: float, *, well: bool, answered: bool) -> bool:
        """Count a look that another process of this gateway made; True where it changed `down`. jitter: as in `began`.

        One that began within AGAIN_SECONDS of the last, or half an interval, shows no more than that one. Who looked
        goes on to do so: the next look is due here only when the other's would be over.
        """
        if began < self._last + min(AGAIN_SECONDS, (self._settings.interval or inf) / 2):
            return False
        self.began(began, jitter)
        changed = self.ended(well=well, answered=answered)
        self._due += self._settings.timeout
        return changed

    def suspect(self) -> None:
        """Have the next look at once: a call could not reach it."""
        if not self.down:
            self._due = min(self._due, self._last + AGAIN_SECONDS)

    def called(self, now: float) -> None:
        """Note that a call is made."""
        self._silent_since = min(self._silent_since, now)

    def heard(self, now: float) -> None:
        """Note that a call brought something."""
        self._heard_at = self._silent_since = now
        self._patience = SILENT_SECONDS

    def idle(self) -> None:
        """Note that no calls are left."""
        self._silent_since = inf
