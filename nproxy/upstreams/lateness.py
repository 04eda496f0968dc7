"""How late behind an answer a server gives its room back, as those find out who come at the end of a call. Pure.

A server counts a call until it is done with it itself. Who comes sooner is turned away, and where the server asks for a
pause then, nobody may come for so long. A server may also fail now and then: what happens most of the time counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nproxy.upstreams.replicas import Replica

LATE_SECONDS = (0.0, 0.005, 0.025, 0.1, 0.25)
"""Behind the end of a call, and between two that come behind the same end."""
LATEST = len(LATE_SECONDS) - 1
_LIKEWISE = 8
"""So many in a row came in time, and it is tried whether they could come sooner."""
_FORGOTTEN, _FORGOTTEN_AT_A_PAUSE = 0.2, 0.5
"""What one that comes makes forgotten of those before it."""
_DEAR = 64
"""For so many times as long as a server wished to be left alone, nobody comes sooner to find out."""
_DOUBTED = 0.6
"""The share that were in time, as it is taken for one that comes sooner than before: a refusal suffices against it."""


class Host(Protocol):
    """The account whose call ended, or the process."""

    def comes(self, opening: Opening) -> None:
        """Let the next one in as late as it is to come."""

    def taken(self, opening: Opening, *, guest: bool) -> bool:
        """Whether, as one that came is refused, somebody else of the account has the room. guest: it is of another."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Opening:
    """The room that the end of a call leaves, or is to leave, at a replica.

    lateness: of the server where it ended. late: who comes waits so long behind the end, or behind the last one that
    came: a place in LATE_SECONDS. first: nobody has come yet. last: the request of which the last one came,
    last_host: its account. since: calls of the host that had begun when it ended. beside: those of them that are being
    answered. left_elsewhere: by a call of another process of this gateway.
    """

    host: Host
    replica: Replica
    lateness: Lateness
    late: int
    since: int
    beside: int
    first: bool = True
    last: object = None
    last_host: object = None
    left_elsewhere: bool = False


class Lateness:
    """What is known of one server. late: how late the first one is to come, as a place in LATE_SECONDS."""

    __slots__ = ("_came", "_dear_until", "_in_a_row", "_in_vain", "_share", "late")

    def __init__(self) -> None:
        self.late = 0
        self._share = 1.0  # of those that came first, that were in time; the last ones count most
        self._in_a_row = 0  # of them were in time
        self._came = 0  # room came so late for one that was not the first
        self._in_vain = False  # none came at all
        self._dear_until = 0.0  # who comes too soon keeps everybody away for a while

    def note_refused(self, opening: Opening, now: float, *, stays: float = 0.0, tells: bool = True) -> bool:
        """Who came was refused: True where the next one is to come, and later.

        stays: seconds in which nobody comes, as the server wishes. now: in seconds that never go back. tells: it was
        for want of this room, as far as is known.
        """
        self._dear_until = max(self._dear_until, now + _DEAR * stays)
        if tells and opening.first and opening.late == self.late:
            self._share *= 1 - (_FORGOTTEN_AT_A_PAUSE if stays else _FORGOTTEN)
            self._in_a_row = 0
            if self._share < 0.5:
                later = self.late + 1 if stays else self._came
                self.late = later if self.late < later <= LATEST else 0  # where it is not late, others have the room
                self._share, self._came = 1.0, 0
        if opening.late == LATEST:
            self._in_vain = self._in_vain or tells
            return False
        if stays:
            return False
        opening.late, opening.first = LATEST if self._in_vain else opening.late + 1, False
        return True

    def note_served(self, opening: Opening, now: float) -> None:
        """Who came was not refused."""
        if not opening.first:
            self._came = 0 if self._in_vain else opening.late
            self._in_vain = False
            return
        if opening.late != self.late:
            return
        self._share += (1 - self._share) * _FORGOTTEN
        self._in_a_row += 1
        if self._in_a_row >= _LIKEWISE and self.late and now >= self._dear_until:
            self.late, self._share, self._in_a_row, self._came = self.late - 1, _DOUBTED, 0, self.late
