"""A permit: what a leg must have to call a replica of an upstream, from the wait for it until it is given back."""

from __future__ import annotations

from typing import Self

from nproxy.choices.events import Room
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.overload.call_attempt import CallAttempt
from nproxy.upstreams.overload.queue import OverloadQueue
from nproxy.upstreams.permit_queue import PermitQueue
from nproxy.upstreams.replicas import Replica


class Permit(CallAttempt):
    """A permit. It is held while a block `with permit.at_once() or await permit.acquire():` runs, which gets the
    replica, and is given back however the block is left.
    """

    __slots__ = ("_permit_queue", "_queue", "_waits", "replica")

    replica: Replica

    def __init__(
        self,
        permit_queue: PermitQueue,
        queue: OverloadQueue | None,
        waits: bool,
        group: CallGroup,
        leg: int,
        choices: int,
        alone: bool,
    ) -> None:
        super().__init__(group, leg, choices, alone)
        self._permit_queue = permit_queue
        self._queue = queue
        self._waits = waits

    def at_once(self) -> Self | None:
        """Take it if the leg need not wait; else None. Raises NoReplicaError if no replica may be called."""
        replica = None if self._waits else self._permit_queue.at_once(self)
        if replica is None:
            return None
        if self._queue is not None:
            self._queue.calls.begin(self)
        self.replica = replica
        return self

    async def acquire(self) -> Self:
        """Wait for it. Raises NoReplicaError if no replica may be called."""
        queue = self._queue
        if queue is not None:
            if self._waits:
                await queue.wait_turn(self)
            else:
                queue.calls.begin(self)
        try:
            self.replica = self._permit_queue.at_once(self) or await self._permit_queue.acquire(self)
        except BaseException:
            if queue is not None:
                queue.abandoned(self)
            raise
        return self

    def __enter__(self) -> Replica:
        return self.replica

    def __exit__(self, *_: object) -> None:
        self._permit_queue.give_back(self.replica, self)
        if self._queue is not None:
            self._queue.ended(self, self.replica)

    def refused(self, wait: float | None, *, sure: bool) -> Room:
        """Note that the replica refused the call for lack of capacity. Returns where there may be capacity for it.

        wait, sure: see OverloadQueue.refused.
        """
        full = self.group.full.get(self.leg, ())
        again = self.replica in full if self.admitted_by else bool(full)
        self.group.turned_away(self.leg, self.replica)
        return "" if self._queue is None else self._queue.refused(self, self.replica, wait, sure=sure or again)
