"""The legs that wait for a free slot of a replica: in which order they wait, and how they are woken."""

from __future__ import annotations

import asyncio
from collections import deque

from nproxy.upstreams.overload.call_attempt import CallAttempt
from nproxy.upstreams.replica_slots import NoReplicaError, ReplicaSlots
from nproxy.upstreams.replicas import Replica

_Waiter = tuple[asyncio.Future[Replica], CallAttempt]


class SlotQueue:
    """The legs that wait for a slot, in order of arrival.

    A leg waits while all replicas that it may go to are full. Some legs may be overtaken, one kind may not:

    - Legs that belong on one replica wait for that one. Others may overtake them.
    - A leg that has failed waits for other replicas than the one where it would fail again. Others may overtake it.
    - A leg that needs a replica alone waits for one without calls. No leg overtakes it, or there might never be one.

    If no replica may be called, a leg is told so at once (NoReplicaError).
    """

    def __init__(self, slots: ReplicaSlots) -> None:
        self._slots = slots
        self._legs: deque[_Waiter] = deque()

    def __len__(self) -> int:
        return len(self._legs)

    def at_once(self, attempt: CallAttempt) -> Replica | None:
        """Take a slot if the leg need not wait, and return its replica; else None. Raises NoReplicaError.

        The slot is to be given back.
        """
        return None if self._legs else self._slots.take(attempt)

    async def acquire(self, attempt: CallAttempt) -> Replica:
        """Wait for a slot, and return its replica. Raises NoReplicaError.

        The slot is to be given back.
        """
        future: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        entry = (future, attempt)
        self._legs.append(entry)
        self.serve()  # legs before it may wait for another replica
        if attempt.has_failed:
            self._serve_again(entry)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give_back(future.result(), attempt)  # granted in the very moment of the cancellation
            elif entry in self._legs:
                self._legs.remove(entry)
                self.serve()  # legs that could not overtake it
            raise

    def _serve_again(self, entry: _Waiter) -> None:
        """Serve the queue again, for a leg that has failed, once a replica that it avoids may be acceptable again.

        Nothing else may do so: that replica may be free all the time, so that no call ends there.
        """
        future, attempt = entry
        if not future.done():
            seconds = self._slots.avoided_seconds(attempt)
            asyncio.get_running_loop().call_later(seconds, self._served_again, entry)

    def _served_again(self, entry: _Waiter) -> None:
        self.serve()
        self._serve_again(entry)

    def give_back(self, replica: Replica, attempt: CallAttempt) -> None:
        """Take back a leg's slot, and serve the legs that wait."""
        replica.end_call(attempt.group, attempt.choices)
        self.serve()

    def serve(self) -> None:
        """Give free slots to the legs that wait, in their order.

        To be called when more or fewer replicas may be called than before. Thousands may wait, and this is called for
        each that comes and goes. So it looks for nothing if nothing is free, and only once for each model.
        """
        if not self._legs:
            return
        slots = self._slots
        passed_by: list[_Waiter] = []
        waited_for: set[str | None] = set()  # models whose legs found no slot: further ones are skipped
        spent = slots.spent
        while self._legs and not spent:
            entry = self._legs.popleft()
            future, attempt = entry
            if future.done():
                continue
            anywhere = slots.common_replica(attempt) is None
            if anywhere and attempt.group.model in waited_for:
                passed_by.append(entry)
                continue
            try:
                replica = slots.take(attempt)
            except NoReplicaError as nobody:
                future.set_exception(nobody)
                continue
            if replica is not None:
                future.set_result(replica)
                spent = slots.spent
                continue
            passed_by.append(entry)
            nowhere = anywhere and not attempt.has_failed  # else others may take what this leg avoids
            if attempt.alone or (nowhere and not slots.divided):
                break  # nothing is free anywhere, or no leg may overtake
            if nowhere:
                waited_for.add(attempt.group.model)
        self._legs.extendleft(reversed(passed_by))
