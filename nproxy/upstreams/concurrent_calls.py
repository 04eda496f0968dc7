"""The other calls at a replica while one is made: whether they may have interrupted it."""

from __future__ import annotations

import time
from collections.abc import Callable

from nproxy.upstreams.replicas import Replica

MOST_TURNS = 3
"""If a call's data alternates with that of another more often than this, the replica streams both at once.

A server that takes one call at a time sends one answer after the other; but sockets that become readable together are
read in any order, so a few alternations prove nothing.
"""
TRUSTED_SECONDS = 600.0
"""How long a replica that has streamed several calls at once is trusted to do so."""


class ConcurrentCalls:
    """One call that has its slot; `spoke` is to be called for each batch of its events. clock: a monotonic time."""

    __slots__ = ("_begun", "_clock", "_joined", "_replica", "_turns")

    def __init__(self, replica: Replica, clock: Callable[[], float] = time.monotonic) -> None:
        self._replica = replica
        self._clock = clock
        self._joined = replica.legs > 1
        self._begun = replica.begun
        self._turns = 0

    def spoke(self) -> None:
        """Something of this call's answer has come."""
        replica = self._replica
        if replica.speaker is self:
            return
        replica.speaker = self
        self._turns += 1
        if self._turns > MOST_TURNS:
            replica.trusted_until = self._clock() + TRUSTED_SECONDS

    @property
    def may_have_interrupted(self) -> bool:
        """Whether another call may be why this one ended: there was one, and the replica is not known to serve both."""
        return (self._joined or self._replica.begun != self._begun) and self._replica.trusted_until <= self._clock()
