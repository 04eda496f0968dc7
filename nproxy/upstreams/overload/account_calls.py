"""The calls of one account that are in flight, and which other calls use the same capacity. Pure.

A server does not say whether it limits accounts together (`shared_capacity.py`). Until a limit of its own is believed
of this one, the calls of all accounts count: the end of any frees a slot, and an answer to any shows that the server
answers.
"""

from __future__ import annotations

from math import inf

from nproxy.upstreams.overload.call_attempt import CallAttempt
from nproxy.upstreams.overload.shared_capacity import OwnLimit, SharedCapacity


class AccountCalls:
    """begun: how many calls have begun; they are numbered in this order. standing: the numbers of those in flight or
    about to be. own_limit: whether the server limits this account separately. answered_at, refused_at: when a call of
    this account last was.
    """

    __slots__ = ("_shared", "answered_at", "begun", "own_limit", "refused_at", "standing")

    def __init__(self, shared: SharedCapacity) -> None:
        self.begun = 0
        self.standing: set[int] = set()
        self.own_limit = OwnLimit()
        self.answered_at = self.refused_at = -inf
        self._shared = shared

    def begin(self, attempt: CallAttempt) -> None:
        """A call is about to be made."""
        self._shared.calls += 1
        self.begun = attempt.number = self.begun + 1
        self.standing.add(attempt.number)

    def end(self, attempt: CallAttempt) -> None:
        """A call is over, or is not made after all."""
        self.standing.discard(attempt.number)
        self._shared.calls -= 1

    def in_flight(self, now: float) -> int:
        """Calls whose end frees a slot for this account, as far as is known."""
        return len(self.standing) if self.own_limit.believed(now) else self._shared.calls

    def last_answer(self, now: float) -> float:
        """When the server last answered a call that shares this account's capacity, as far as is known."""
        return self.answered_at if self.own_limit.believed(now) else self._shared.answered_at

    def last_refusal(self, now: float) -> float:
        """When it last refused such a call."""
        return self.refused_at if self.own_limit.believed(now) else self._shared.refused_at

    def accounts_waiting(self, now: float) -> int:
        """How many accounts wait for this account's capacity, itself included, as far as is known."""
        return 1 if self.own_limit.believed(now) else max(len(self._shared.waiting), 1)
