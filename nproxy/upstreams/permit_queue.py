"""Who waits for a permit, in which order, and how they are woken."""

from __future__ import annotations

import asyncio
from collections import deque

from nproxy.upstreams.permits import NoReplicaError, PermitRequest, Permits
from nproxy.upstreams.replicas import Replica

_Waiter = tuple[asyncio.Future[Replica], PermitRequest]


class PermitQueue:
    """The legs that wait: first come, first served.

    Legs that belong on one replica wait for that one, and others may pass them by. A leg that is to be alone waits for
    a replica without calls, and nobody passes it by, or there might never be one. A leg waits while every replica that
    will do for it is full; one that has failed somewhere also waits rather than go back to where it would fail again,
    and others pass it by. Where no replica may be asked, a leg is told at once.
    """

    def __init__(self, permits: Permits) -> None:
        self._permits = permits
        self._legs: deque[_Waiter] = deque()

    def __len__(self) -> int:
        return len(self._legs)

    def at_once(self, request: PermitRequest) -> Replica | None:
        """A replica, to be given back; None if the leg has to wait. Raises NoReplicaError if none may be asked."""
        return None if self._legs else self._permits.take(request)

    async def acquire(self, request: PermitRequest) -> Replica:
        """Wait for a replica, which is to be given back. Raises NoReplicaError where none may be asked."""
        future: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        entry = (future, request)
        self._legs.append(entry)
        self.serve()  # those before it may wait for another replica
        if request.has_failed:
            self._serve_again(entry)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give_back(future.result(), request)  # handed over in the very moment of the cancellation
            elif entry in self._legs:
                self._legs.remove(entry)
                self.serve()  # those whom it did not let pass
            raise

    def _serve_again(self, entry: _Waiter) -> None:
        """Look again for a leg that has failed: it may wait for others than one that is free, which will do now."""
        future, request = entry
        if not future.done():
            seconds = self._permits.avoided_seconds(request)
            asyncio.get_running_loop().call_later(seconds, self._served_again, entry)

    def _served_again(self, entry: _Waiter) -> None:
        self.serve()
        self._serve_again(entry)

    def give_back(self, replica: Replica, request: PermitRequest) -> None:
        """Take back what a leg was given, and give it to those who wait."""
        replica.release(request.group, request.choices)
        self.serve()

    def serve(self) -> None:
        """Give what is free to those who wait, in their order: called when more or fewer may be asked than before.

        Thousands may wait, and this is called for each that comes and goes: so nothing is looked for where nothing is
        free, and only once for each model.
        """
        if not self._legs:
            return
        permits = self._permits
        passed_by: list[_Waiter] = []
        waited_for: set[str | None] = set()  # models of those who cannot be served, whom their like do not pass by
        spent = permits.spent
        while self._legs and not spent:
            entry = self._legs.popleft()
            future, request = entry
            if future.done():
                continue
            anywhere = permits.place(request) is None
            if anywhere and request.group.model in waited_for:
                passed_by.append(entry)
                continue
            try:
                replica = permits.take(request)
            except NoReplicaError as nobody:
                future.set_exception(nobody)
                continue
            if replica is not None:
                future.set_result(replica)
                spent = permits.spent
                continue
            passed_by.append(entry)
            nowhere = anywhere and not request.has_failed  # else others may want what it does not
            if request.alone or (nowhere and not permits.divided):
                break  # nothing is free anywhere, or nobody may pass
            if nowhere:
                waited_for.add(request.group.model)
        self._legs.extendleft(reversed(passed_by))
