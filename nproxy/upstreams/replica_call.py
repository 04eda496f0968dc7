"""The call of a replica by a leg: it waits for a free slot, holds it, and gives it back."""

from __future__ import annotations

from typing import Self

from nproxy.choices.events import Room
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.overload.call_attempt import CallAttempt
from nproxy.upstreams.overload.queue import OverloadQueue
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.slot_queue import SlotQueue


class ReplicaCall(CallAttempt):
    """A CallAttempt as its caller holds it. The queues see only the base, so that neither imports the other.

    It has a slot while a block `with attempt.at_once() or await attempt.acquire():` runs, which gets the replica. The
    slot is given back however the block is left.
    """

    __slots__ = ("_queue", "_slot_queue", "_waits", "replica")

    replica: Replica

    def __init__(
        self,
        slot_queue: SlotQueue,
        queue: OverloadQueue | None,
        waits: bool,
        group: CallGroup,
        leg: int,
        choices: int,
        alone: bool,
    ) -> None:
        super().__init__(group, leg, choices, alone)
        self._slot_queue = slot_queue
        self._queue = queue
        self._waits = waits

    def at_once(self) -> Self | None:
        """Take a slot if the leg need not wait; else None. Raises NoReplicaError if no replica may be called."""
        replica = None if self._waits else self._slot_queue.at_once(self)
        if replica is None:
            return None
        if self._queue is not None:
            self._queue.calls.begin(self)
        self.replica = replica
        return self

    async def acquire(self) -> Self:
        """Wait for a slot. Raises NoReplicaError if no replica may be called."""
        queue = self._queue
        if queue is not None:
            if self._waits:
                await queue.wait_turn(self)
            else:
                queue.calls.begin(self)
        try:
            self.replica = self._slot_queue.at_once(self) or await self._slot_queue.acquire(self)
        except BaseException:
            if queue is not None:
                queue.abandoned(self)
            raise
        return self

    def __enter__(self) -> Replica:
        return self.replica

    def __exit__(self, *_: object) -> None:
        self._slot_queue.give_back(self.replica, self)
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
