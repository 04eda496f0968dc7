"""How soon those who wait at a full server find out whether there is more room. Pure.

It comes the more seldom the longer it was in vain, and soon where it was not; while it goes well, each call that ends
leaves room for two.
"""

from __future__ import annotations

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 16.0
SHORTEST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_ANSWERS = 8
"""Nor longer than so many answers take."""
ANSWERS_SECONDS = 1.0
"""However short those are."""
IDLE_PAUSE_SECONDS = 0.5
"""Nor longer than that where nothing else will let anybody in."""
_REMEMBERED_ANSWERS = 4
"""How long one takes is an average, in which the last one has a share of one in so many."""


class Pace:
    """What became of those that were let in to find out. grows: the last ones have found some room."""

    __slots__ = ("_answer", "_answers", "_once", "_pause", "_trying", "grows")

    def __init__(self) -> None:
        self.grows = False
        self._pause = FIRST_PAUSE_SECONDS
        self._answer = LONGEST_PAUSE_SECONDS  # seconds that one takes, as far as is known
        self._answers = 0
        self._trying = False  # one was let in to find out, and was not turned away yet
        self._once = False  # one that did so was answered

    def pause(self, *, idle: bool) -> float:
        """Seconds until the next one finds out, more or less. idle: nothing else will let anybody in."""
        most = IDLE_PAUSE_SECONDS if idle else max(LONGEST_PAUSE_ANSWERS * self._answer, ANSWERS_SECONDS)
        return min(self._pause, most)

    def begins(self) -> None:
        """Nobody has waited for a while."""
        self._pause = FIRST_PAUSE_SECONDS

    def hurry(self) -> None:
        """There may be more room than there was."""
        self._pause = SHORTEST_PAUSE_SECONDS

    def note_try(self) -> None:
        """One is let in to find out whether there is room beside those that are in it."""
        if self._trying:
            self._found()
        self._trying = True

    def forget_try(self) -> None:
        """One that was to find out was turned away, and not for want of room."""
        self._trying = False

    def note_full(self, *, tried: bool) -> None:
        """A refusal is taken for one for want of room. tried: of one that was to find out."""
        self.grows = False
        if tried:
            self._trying = self._once = False
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def note_answer(self, seconds: float, *, tried: bool) -> None:
        """One that was let in has its answer, so many seconds later. tried: it was to find out."""
        self._answers = min(self._answers + 1, _REMEMBERED_ANSWERS)
        self._answer += (seconds - self._answer) / self._answers
        if tried and self._trying:
            self._trying = False
            self._found()

    def _found(self) -> None:
        """One that was to find out was not turned away. A single one may have found the room of a call that ended."""
        self.grows, self._once = self._once, True
        self._pause = max(self._pause / 2, SHORTEST_PAUSE_SECONDS)
