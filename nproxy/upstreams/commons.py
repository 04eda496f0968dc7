"""Accounts of one upstream whose calls may share its room: those that wait take turns at the ends of all of them. Pure.

A server may count the calls of all its models and all keys together, as one with adapters does, or those of each for
themselves, as hosted ones do. It does not say so. Where each account went by its own ends alone, one that is busy would
take back each place that it leaves, and another one would never have any.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from nproxy.upstreams.lateness import Lateness, Opening
from nproxy.upstreams.replicas import Replica


class Member(Protocol):
    """Those of one account that wait."""

    def invited(self, opening: Opening) -> bool:
        """Let one of them in for the room that a call of some account leaves; False where none comes."""

    def left_alone(self) -> None:
        """No call is in flight."""


class _Turns:
    """Whose turn it is at one replica, by start-time fair queueing (Goyal, Vin and Cheng, 1996), as in a crowd."""

    def __init__(self) -> None:
        self._last = 0  # of the last one that was let in
        self._next: WeakKeyDictionary[Member, int] = WeakKeyDictionary()
        self._owed: WeakSet[Member] = WeakSet()  # those for whom their last turn was in vain

    def of(self, member: Member) -> int:
        """One that has let its turns go by gets none of them back."""
        turn = self._next.get(member, 0)
        return turn if member in self._owed else max(turn, self._last)

    def took(self, member: Member) -> None:
        """One was let in."""
        turn = self.of(member)
        self._owed.discard(member)
        self._last = max(self._last, turn)
        self._next[member] = turn + 1

    def give_back(self, member: Member) -> None:
        """It was in vain."""
        if member in self._next and member not in self._owed:
            self._next[member] -= 1
            self._owed.add(member)


class Commons:
    """What the accounts of one upstream share.

    calls: in flight, or about to be, of all of them. answered_at, refused_at: when one was answered last, and when one
    was turned away last.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.answered_at = self.refused_at = -inf
        self._waiting: dict[Member, None] = {}
        self._turns: dict[Replica, _Turns] = {}
        self._lateness: dict[Replica, Lateness] = {}  # of those that ever were full

    @property
    def waiting(self) -> int:
        """Accounts of which somebody waits."""
        return len(self._waiting)

    def note_waiting(self, member: Member, *, waits: bool) -> None:
        """Some of an account wait, or none any more."""
        if waits:
            self._waiting.setdefault(member)
        else:
            self._waiting.pop(member, None)

    def invite(self, opening: Opening) -> None:
        """Let the next one in: accounts take turns, at each replica by themselves.

        One that has just been turned away behind this end lets another one find out whether its room comes later.
        """
        turns = self._turns.setdefault(opening.replica, _Turns())
        for member in sorted(self._waiting, key=lambda one: (one is opening.last_host, turns.of(one))):
            if member.invited(opening):
                turns.took(member)
                opening.last_host = member
                return

    def note_refused(self, member: Member, replica: Replica, now: float, *, invited: bool) -> None:
        """One was turned away. invited: it was let in behind an end, and has its turn still."""
        self.refused_at = now
        if invited and replica in self._turns:
            self._turns[replica].give_back(member)

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
        self._turns = {replica: turns for replica, turns in self._turns.items() if replica in there}


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
