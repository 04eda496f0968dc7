"""The health of a replica by its health checks: what they have shown, and when the next one is due.

Pure: times are arguments, in seconds of a monotonic clock. `health_checker.py` makes the checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from nproxy.config import Health as Settings

AGAIN_SECONDS = 1.0
"""If a check contradicts the current state, the next one follows after so long, until either state is confirmed."""
SILENT_SECONDS = 2.0
"""A replica that has calls and sends nothing for so long gets an extra check.

A stopped server still accepts connections, so nothing else would show it before the calls' own time limits, which are
long enough for a slow model. A busy server answers the check, and the extra checks become rarer while its silence
lasts.
"""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check of a replica, for other processes of this gateway.

    status: of the answer; None if none came. seconds: how long ago the check began.
    """

    upstream: str
    replica: str
    status: int | None
    seconds: float


class HealthChecks:
    """What the health checks of one replica have shown. The first check is due at once.

    down: so many checks in a row failed that it gets no calls. doubtful: it is down, or the last check that counted
    failed, so that others are preferred. answered: the last check was answered, even if with an error; None before the
    first.
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
        self._in_a_row = 0  # checks that contradict `down`
        self._last = -inf  # when the last check began
        self._due = -inf
        self._heard_at = -inf
        self._silent_since = inf
        self._patience = SILENT_SECONDS

    @property
    def doubtful(self) -> bool:
        """Whether it is down, or its last check did not go well."""
        return self.down or self._in_a_row > 0

    def due(self) -> float:
        """When the next check is due; infinity if checks are off."""
        if self._settings.interval is None:
            return inf
        return min(self._due, self._silent_since + self._patience)

    def began(self, now: float, jitter: float) -> None:
        """Note that a check begins. jitter: from 0 up to 1; the next check is due in 0.9 to 1.1 intervals."""
        self._last = now
        self._due = now + (self._settings.interval or inf) * (0.9 + 0.2 * jitter)
        if self._silent_since < inf:
            self._silent_since = now
            self._patience = min(2 * self._patience, max(SILENT_SECONDS, self._settings.interval or inf))

    def ended(self, *, well: bool, answered: bool = True) -> bool:
        """Count the result of a check; True if it changed `down`.

        well: the answer was good. answered: an answer came, good or not. If none came, but calls brought something
        meanwhile, then the replica is busy and the check proves nothing.
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
        """Whether calls brought something since the last check began."""
        return self._heard_at >= self._last

    def note_peer_check(self, began: float, jitter: float, *, well: bool, answered: bool) -> bool:
        """Count a check that another process of this gateway made; True if it changed `down`. jitter: as in `began`.

        A check that began within AGAIN_SECONDS of the last one, or within half an interval, is ignored, as it adds
        nothing. The other process goes on making the checks: the next one is due here only when the other's would be
        over.
        """
        if began < self._last + min(AGAIN_SECONDS, (self._settings.interval or inf) / 2):
            return False
        self.began(began, jitter)
        changed = self.ended(well=well, answered=answered)
        self._due += self._settings.timeout
        return changed

    def suspect(self) -> None:
        """Make the next check soon, because a call could not reach the replica."""
        if not self.down:
            self._due = min(self._due, self._last + AGAIN_SECONDS)

    def wait_for_interval(self) -> None:
        """Make the next check an interval after the last one, although that one could not reach the replica."""
        self._due = self._last + (self._settings.interval or inf)

    def called(self, now: float) -> None:
        """Note that a call is made."""
        if now < self._silent_since:
            self._silent_since = now

    def heard(self, now: float) -> None:
        """Note that a call brought something."""
        self._heard_at = self._silent_since = now
        self._patience = SILENT_SECONDS

    def idle(self) -> None:
        """Note that no calls are left."""
        self._silent_since = inf
