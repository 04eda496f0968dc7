"""The company of a call: whether others of ours were at its replica, and whether they all streamed at once."""

from __future__ import annotations

import time
from collections.abc import Callable

from nproxy.upstreams.replicas import Replica

MOST_TURNS = 3
"""A call that has spoken more often than this after another had streamed beside that one.

Where a server takes one call at a time, each speaks once; but sockets that became readable together are read in any
order.
"""
TRUSTED_SECONDS = 600.0
"""How long a replica that has streamed several calls at once is trusted to do so."""


class Company:
    """One call that has its permit. `spoke` for each batch of its events. clock: seconds that never go back."""

    __slots__ = ("_begun", "_clock", "_joined", "_replica", "_turns")

    def __init__(self, replica: Replica, clock: Callable[[], float] = time.monotonic) -> None:
        self._replica = replica
        self._clock = clock
        self._joined = replica.legs > 1
        self._begun = replica.begun
        self._turns = 0

    def spoke(self) -> None:
        """Note that something of this call has come."""
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
