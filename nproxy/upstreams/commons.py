"""Accounts of one upstream whose calls may share its room: those that wait take turns at the ends of all of them. Pure.

A server may count the calls of all its models and all keys together, as one with adapters does, or those of each for
themselves, as hosted ones do. It does not say so. Where each account went by its own ends alone, one that is busy would
take back each place that it leaves, and another one would never have any.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Protocol

from nproxy.upstreams.lateness import Lateness, Opening
from nproxy.upstreams.replicas import Replica


class Member(Protocol):
    """Those of one account that wait. next_turn: see `Commons.invite`."""

    next_turn: int

    def invited(self, opening: Opening) -> bool:
        """Let one of them in for the room that a call of some account leaves; False where none comes."""

    def left_alone(self) -> None:
        """No call is in flight."""


class Others(Protocol):
    """Other processes of this gateway, see elsewhere.py."""

    def tell_answers(self) -> None:
        """Tell that calls are being answered."""

    def tell_waiting(self, *, waits: bool) -> None:
        """Tell that some wait here, or none any more."""


TELL_SECONDS = 4.0
"""How often others are told that calls are being answered."""


class Commons:
    """What the accounts of one upstream share.

    calls: in flight, or about to be, of all of them. answered_at, refused_at: when one was answered last, and when one
    was turned away last. waiting_here: accounts of which somebody waits in this process. others: None where this is the
    only one.
    """

    def __init__(self) -> None:
        self.others: Others | None = None
        self.waiting_here = 0
        self._told_at = -inf
        self.calls = 0
        self.answered_at = self.refused_at = -inf
        self._waiting: dict[Member, None] = {}
        self._turn = 0  # of the last one that was let in
        self._lateness: dict[Replica, Lateness] = {}  # of those that ever were full

    @property
    def waiting(self) -> int:
        """Accounts of which somebody waits, and other processes."""
        return len(self._waiting)

    @property
    def others_are_next(self) -> bool:
        """Whether room that a call leaves here is for other processes first, so that who comes now waits, too."""
        return len(self._waiting) > self.waiting_here and self.calls > 0

    def note_answer(self, now: float) -> None:
        """A call was answered."""
        self.answered_at = now
        if self.others is not None and now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            self.others.tell_answers()

    def note_waiting(self, member: Member, *, waits: bool, here: bool = True) -> None:
        """Some of an account wait, or none any more; or of another process, where it is not here."""
        if waits == (member in self._waiting):
            return
        if waits:
            member.next_turn = max(member.next_turn, self._turn)
            self._waiting[member] = None
        else:
            del self._waiting[member]
        if here:
            before, self.waiting_here = self.waiting_here, self.waiting_here + (1 if waits else -1)
            if self.others is not None and not (before and self.waiting_here):
                self.others.tell_waiting(waits=waits)

    def invite(self, opening: Opening) -> None:
        """Let the next one in: accounts take turns (start-time fair queueing, as requests do in a crowd).

        One that has just been turned away behind this end lets another one find out whether its room comes later.
        """
        members = sorted(self._waiting, key=lambda one: (one is opening.last_host, one.next_turn))
        for member in members:
            if member.invited(opening):
                self._turn = max(self._turn, member.next_turn)
                member.next_turn += 1
                opening.last_host = member
                return

    def note_refused(self, member: Member, now: float, *, invited: bool) -> None:
        """One was turned away. invited: it was let in behind an end, and has its turn still."""
        self.refused_at = now
        member.next_turn -= invited

    def leave_nobody_behind(self) -> None:
        """Where nobody is in flight, no end lets in those who wait: they find out soon."""
        if self._waiting and not self.calls:
            for member in tuple(self._waiting):
                member.left_alone()

    def lateness(self, replica: Replica) -> Lateness:
        """How late it gives its room back."""
        return self._lateness.setdefault(replica, Lateness())

    def keep(self, there: Collection[Replica]) -> None:
        """Forget the replicas that are no longer there."""
        self._lateness = {replica: late for replica, late in self._lateness.items() if replica in there}


class Apart:
    """Whether one account's room is its own, as far as those show that came behind the ends of others' calls.

    disproved: one of them was answered, and it was not believed since.
    """

    __slots__ = ("_in_vain", "_until", "disproved")

    IN_VAIN = 5
    """So many of them in a row are turned away, and it is believed."""
    SECONDS = 30.0
    """So long; then one more may find out."""

    def __init__(self) -> None:
        self.disproved = False
        self._in_vain = 0
        self._until = -inf

    def believed(self, now: float) -> bool:
        return now < self._until

    def note_refused(self, now: float) -> None:
        """One that came first behind another account's end was turned away, and nobody else had the room."""
        self._in_vain += 1
        if self._in_vain >= self.IN_VAIN:
            self.disproved, self._in_vain, self._until = False, self.IN_VAIN - 1, now + self.SECONDS

    def note_served(self) -> None:
        """One that came behind another account's end was answered."""
        self.disproved, self._in_vain, self._until = True, 0, -inf
