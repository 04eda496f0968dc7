"""How soon those who wait at a full server find out whether there is more room. Pure: randomness is an argument.

It comes the more seldom the longer it was in vain, and soon where it was not; while it goes well, each call that ends
leaves room for two.
"""

from __future__ import annotations

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 16.0
SHORTEST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_ANSWERS = 8
"""Nor longer than so many answers take, where that is more than the next."""
IDLE_PAUSE_SECONDS = 1.0
"""Nor longer than that where nothing else will let anybody in."""


class Pace:
    """What refusals and ends say of the room. grows: the last one that was let in to find out has found some."""

    __slots__ = ("_answer", "_in_a_row", "_pause", "_trying", "grows")

    def __init__(self) -> None:
        self.grows = False
        self._pause = FIRST_PAUSE_SECONDS
        self._answer = LONGEST_PAUSE_SECONDS  # seconds that one takes
        self._trying = False  # one was let in to find out, and was not turned away yet
        self._in_a_row = 0  # refusals since a call ended that was not refused

    def seconds(self, jitter: float, *, idle: bool) -> float:
        """Until the next one finds out. jitter: from 0 up to 1. idle: nothing else will let anybody in."""
        most = IDLE_PAUSE_SECONDS if idle else max(LONGEST_PAUSE_ANSWERS * self._answer, IDLE_PAUSE_SECONDS)
        return min(self._pause, most) * (0.5 + jitter)

    def begins(self) -> None:
        """Nobody has waited for a while."""
        self._pause = FIRST_PAUSE_SECONDS

    def hurry(self) -> None:
        """There may be more room than there was."""
        self._pause = SHORTEST_PAUSE_SECONDS

    def note_try(self) -> None:
        """One is let in to find out; the one before was not turned away."""
        if self._trying:
            self.grows = True
            self._pause = max(self._pause / 2, SHORTEST_PAUSE_SECONDS)
        self._trying = True

    def note_refused(self, *, sure: bool) -> bool:
        """Count a refusal. sure: it says that it is for want of room.

        True where it may have another cause: it came alone, and does not say so.
        """
        self._in_a_row += 1
        return not sure and self._in_a_row == 1

    def note_full(self, *, tried: bool) -> None:
        """A refusal is taken for one for want of room. tried: of one that was to find out."""
        self.grows = False
        if tried:
            self._trying = False
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def note_end(self) -> None:
        """A call is over that was not refused."""
        self._in_a_row = 0

    def note_answer(self, seconds: float) -> None:
        """One that was let in has its answer, so many seconds later."""
        self._answer += (seconds - self._answer) / 4
