"""Accounts of one upstream whose calls may share its capacity: they take turns when any of their calls ends. Pure.

A server may count the calls of all its models and keys together (one with adapters does), or those of each separately
(hosted ones do). It does not say which. If each account were admitted only when its own calls end, a busy account would
take back every slot it frees, and another one would never get any.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from nproxy.upstreams.overload.release_delay import FreedSlot, ReleaseDelay
from nproxy.upstreams.replicas import Replica


class WaitingAccount(Protocol):
    """The legs of one account that wait."""

    def accept(self, slot: FreedSlot) -> bool:
        """Admit one of them for a freed slot; returns False if none goes."""

    def nothing_in_flight(self) -> None:
        """No call of any account is in flight."""


class _Turns:
    """Whose turn it is at one replica: start-time fair queueing (Goyal, Vin and Cheng, 1996), as in WaitingLegs."""

    def __init__(self) -> None:
        self._last = 0  # of the account that was admitted last
        self._next: WeakKeyDictionary[WaitingAccount, int] = WeakKeyDictionary()
        self._owed: WeakSet[WaitingAccount] = WeakSet()  # whose last attempt was refused

    def of(self, account: WaitingAccount) -> int:
        """Its turn. An account that was away gets no credit for the turns it missed."""
        turn = self._next.get(account, 0)
        return turn if account in self._owed else max(turn, self._last)

    def took(self, account: WaitingAccount) -> None:
        """One of its legs was admitted."""
        turn = self.of(account)
        self._owed.discard(account)
        self._last = max(self._last, turn)
        self._next[account] = turn + 1

    def give_back(self, account: WaitingAccount) -> None:
        """The leg was refused, so the account has its turn again."""
        if account in self._next and account not in self._owed:
            self._next[account] -= 1
            self._owed.add(account)


class SharedCapacity:
    """What the accounts of one upstream share.

    calls: in flight or about to be, of all accounts. waiting: the accounts with waiting legs. answered_at, refused_at:
    when a call of any was last answered, or refused.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.answered_at = self.refused_at = -inf
        self.waiting: dict[WaitingAccount, None] = {}
        self._turns: dict[Replica, _Turns] = {}
        self._release_delays: dict[Replica, ReleaseDelay] = {}  # of replicas that were full at some time

    def note_waiting(self, account: WaitingAccount, *, waits: bool) -> None:
        """Note whether an account has waiting legs."""
        if waits:
            self.waiting.setdefault(account)
        else:
            self.waiting.pop(account, None)

    def offer(self, slot: FreedSlot) -> None:
        """Offer a freed slot to the accounts, by turns at that replica.

        The account whose attempt for this slot was refused last comes last: the next attempt, after a longer delay,
        is another one's.
        """
        turns = self._turns.setdefault(slot.replica, _Turns())
        for account in sorted(self.waiting, key=lambda one: (one is slot.last_host, turns.of(one))):
            if account.accept(slot):
                turns.took(account)
                slot.last_host = account
                return

    def note_refused(self, account: WaitingAccount, replica: Replica, now: float, *, by_turn: bool) -> None:
        """A call was refused. by_turn: it was admitted by `offer`, and the account gets its turn back."""
        self.refused_at = now
        if by_turn and replica in self._turns:
            self._turns[replica].give_back(account)

    def ensure_probes(self) -> None:
        """If nothing is in flight, no end of a call will admit the legs that wait: have the accounts probe soon."""
        if self.waiting and not self.calls:
            for account in tuple(self.waiting):
                account.nothing_in_flight()

    def release_delay(self, replica: Replica) -> ReleaseDelay:
        """The release delay of a replica."""
        return self._release_delays.setdefault(replica, ReleaseDelay())

    def keep(self, there: Collection[Replica]) -> None:
        """Forget all replicas but these."""
        self._release_delays = {one: delay for one, delay in self._release_delays.items() if one in there}
        self._turns = {replica: turns for replica, turns in self._turns.items() if replica in there}


class OwnLimit:
    """Whether the server limits one account separately, judged by attempts for slots that other accounts freed.

    disproved: such an attempt was answered, and a separate limit was not believed since.
    """

    __slots__ = ("_counted_at", "_refused", "_until", "disproved")

    REFUSALS = 5
    """A separate limit is believed after this many refusals in a row."""
    APART_SECONDS = 0.1
    """Refusals that follow each other sooner count as one: new accounts may take several slots in one moment."""
    SECONDS = 30.0
    """And for so long; then one more attempt may find out."""

    def __init__(self) -> None:
        self.disproved = False
        self._refused = 0
        self._counted_at = -inf
        self._until = -inf

    def believed(self, now: float) -> bool:
        """Whether the news is recent enough to count."""
        return now < self._until

    def note_refused(self, now: float) -> None:
        """The first attempt for another account's slot was refused, and nobody else had taken the slot."""
        if now - self._counted_at < self.APART_SECONDS:
            return
        self._counted_at = now
        self._refused += 1
        if self._refused >= self.REFUSALS:
            self.disproved, self._refused, self._until = False, self.REFUSALS - 1, now + self.SECONDS

    def note_served(self) -> None:
        """An attempt for another account's slot was answered."""
        self.disproved, self._refused, self._until = True, 0, -inf
