"""How often legs that wait for a full server probe for more capacity. Pure.

The interval doubles when a probe is refused and halves when one is answered. While probes succeed (`grows`), each call
that ends admits two.
"""

from __future__ import annotations

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 16.0
SHORTEST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_ANSWERS = 8
"""The interval is at most so many times the mean duration of an answer; see ANSWERS_SECONDS."""
ANSWERS_SECONDS = 1.0
"""The limit by the duration of answers is at least so long."""
IDLE_PAUSE_SECONDS = 0.5
"""The longest interval if no call is in flight whose end would admit a leg."""
_ANSWERS_AVERAGED = 4
"""Time constant of the moving average of an answer's duration."""


class ProbePace:
    """The interval of probes, and what came of them. grows: the last probes found more capacity."""

    __slots__ = ("_answer_seconds", "_answers", "_found_once", "_pause", "_probing", "grows")

    def __init__(self) -> None:
        self.grows = False
        self._pause = FIRST_PAUSE_SECONDS
        self._answer_seconds = LONGEST_PAUSE_SECONDS
        self._answers = 0
        self._probing = False  # a probe is in flight, and was not refused yet
        self._found_once = False  # the last probe was answered

    def pause(self, *, idle: bool) -> float:
        """Mean seconds until the next probe. idle: no call is in flight whose end would admit a leg."""
        most = IDLE_PAUSE_SECONDS if idle else max(LONGEST_PAUSE_ANSWERS * self._answer_seconds, ANSWERS_SECONDS)
        return min(self._pause, most)

    def restart(self) -> None:
        """The first leg begins to wait after a time without."""
        self._pause = FIRST_PAUSE_SECONDS

    def hurry(self) -> None:
        """There may be more capacity than there was: a replica has come, or come back."""
        self._pause = SHORTEST_PAUSE_SECONDS

    def note_probe(self) -> None:
        """A probe is made while other calls are in flight."""
        if self._probing:
            self._found()
        self._probing = True

    def forget_probe(self) -> None:
        """A probe was refused for another reason than capacity."""
        self._probing = False

    def note_full(self, *, probe: bool) -> None:
        """A call was refused for lack of capacity. probe: it was one."""
        self.grows = False
        if probe:
            self._probing = self._found_once = False
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def note_answer(self, seconds: float, *, probe: bool) -> None:
        """A call that had waited was answered, so many seconds after it was admitted. probe: it was one."""
        self._answers = min(self._answers + 1, _ANSWERS_AVERAGED)
        self._answer_seconds += (seconds - self._answer_seconds) / self._answers
        if probe and self._probing:
            self._probing = False
            self._found()

    def _found(self) -> None:
        """A probe was not refused. One alone may have taken the slot of a call that ended; two in a row have not."""
        self.grows, self._found_once = self._found_once, True
        self._pause = max(self._pause / 2, SHORTEST_PAUSE_SECONDS)
