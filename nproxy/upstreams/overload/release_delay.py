"""How long after an answer a server gives its capacity back, learned from the calls that follow it. Pure.

A server counts a call until it is done with it itself, which may be some milliseconds after the client has the last
byte. A call that comes sooner is refused, and if the server then asks for a pause (Retry-After), nobody may call for
that long. Servers also fail now and then, so what counts is what happens most of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nproxy.upstreams.replicas import Replica

RELEASE_DELAYS = (0.0, 0.005, 0.025, 0.1, 0.25)
"""Seconds to wait after the end of a call, and between two attempts that follow the same end. Delays are indices."""
LONGEST_DELAY = len(RELEASE_DELAYS) - 1
_ON_TIME_TO_GO_SOONER = 8
"""After this many first attempts in a row that were on time, a shorter delay is tried."""
_WEIGHT, _WEIGHT_WITH_PAUSE = 0.2, 0.5
"""Weight of the newest observation in the moving average; of a refusal that asks for a pause."""
_PAUSE_FACTOR = 64
"""After a pause, no shorter delay is tried for this many times its length."""
_SHARE_ON_PROBATION = 0.6
"""The share on time that a newly shortened delay starts with: one refusal is enough to take it back."""


class Host(Protocol):
    """The account whose call ended."""

    def schedule(self, slot: FreedSlot) -> None:
        """Admit the next attempt after the slot's delay."""

    def was_taken(self, slot: FreedSlot, *, guest: bool) -> bool:
        """Whether, as an attempt is refused, another call of this account uses the slot. guest: it is not of it."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class FreedSlot:
    """The capacity that the end of a call leaves, or will leave, at a replica.

    release_delay: the server's. delay: how long the next attempt waits after the end of the call, or after the last
    attempt for this slot (an index into RELEASE_DELAYS). since: how many calls of the host had begun when the call
    ended. in_flight: those of them that are still being answered. first: no attempt has been made for it. last_group,
    last_host: the request of the last attempt, and its account. left_by_peer: the call was another worker's.
    """

    host: Host
    replica: Replica
    release_delay: ReleaseDelay
    delay: int
    since: int
    in_flight: int
    first: bool = True
    last_group: object = None
    last_host: object = None
    left_by_peer: bool = False


class ReleaseDelay:
    """What is known of one server. delay: of the first attempt for a slot (an index into RELEASE_DELAYS)."""

    __slots__ = ("_later_on_time", "_no_shorter_until", "_nobody_on_time", "_on_time_in_a_row", "_share", "delay")

    def __init__(self) -> None:
        self.delay = 0
        self._share = 1.0  # of first attempts that were on time, a moving average
        self._on_time_in_a_row = 0  # first attempts
        self._later_on_time = 0  # the delay of the last attempt that was on time and not the first for its slot
        self._nobody_on_time = False  # even the longest delay was too short
        self._no_shorter_until = 0.0

    def note_refused(self, slot: FreedSlot, now: float, *, pause: float = 0.0, tells: bool = True) -> bool:
        """An attempt for the slot was refused. Returns whether another is to be made, after the slot's new delay.

        pause: seconds for which the server wants no calls. now: a monotonic time. tells: whether the refusal was for
        lack of this capacity, as far as is known.
        """
        self._no_shorter_until = max(self._no_shorter_until, now + _PAUSE_FACTOR * pause)
        if tells and slot.first and slot.delay == self.delay:
            self._share *= 1 - (_WEIGHT_WITH_PAUSE if pause else _WEIGHT)
            self._on_time_in_a_row = 0
            if self._share < 0.5:
                later = self.delay + 1 if pause else self._later_on_time
                # if no longer delay is on time, others use the capacity, and waiting is of no use
                self.delay = later if self.delay < later <= LONGEST_DELAY else 0
                self._share, self._later_on_time = 1.0, 0
        if slot.delay == LONGEST_DELAY:
            self._nobody_on_time = self._nobody_on_time or tells
            return False
        if pause:
            return False
        slot.delay, slot.first = LONGEST_DELAY if self._nobody_on_time else slot.delay + 1, False
        return True

    def note_served(self, slot: FreedSlot, now: float) -> None:
        """An attempt for the slot was answered."""
        if not slot.first:
            self._later_on_time = 0 if self._nobody_on_time else slot.delay
            self._nobody_on_time = False
            return
        if slot.delay != self.delay:
            return
        self._share += (1 - self._share) * _WEIGHT
        self._on_time_in_a_row += 1
        if self._on_time_in_a_row >= _ON_TIME_TO_GO_SOONER and self.delay and now >= self._no_shorter_until:
            self._later_on_time, self.delay = self.delay, self.delay - 1
            self._share, self._on_time_in_a_row = _SHARE_ON_PROBATION, 0
