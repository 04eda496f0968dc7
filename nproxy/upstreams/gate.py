"""The gate: legs wait here, in order, until a replica has a permit for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nproxy.upstreams.balancing import least_loaded
from nproxy.upstreams.replicas import Replica


@dataclass(slots=True, eq=False)
class Kin:
    """Legs that belong on one replica. replica: where the first of them went."""

    replica: Replica | None = None

    def place(self) -> Replica | None:
        """Where the next one belongs; None where that is open, or that replica cannot be reached."""
        return None if self.replica is None or self.replica.avoided() else self.replica


_Waiter = tuple[asyncio.Future[Replica], int, Kin | None]


class Gate:
    """Hands out replicas, at most `parallel` legs on each at once; first come, first served.

    Legs that belong on one replica wait for that one, and others may pass them by. A leg that waits has not been sent,
    so none of its timers run. One gate serves all requests of an upstream.
    """

    def __init__(self, replicas: Sequence[Replica], parallel: int | None) -> None:
        self.replicas = tuple(replicas)
        self.parallel = parallel
        self._waiting: deque[_Waiter] = deque()
        self._turn = 0

    @property
    def waiting(self) -> int:
        """Legs that wait for a permit."""
        return len(self._waiting)

    @asynccontextmanager
    async def permit(self, choices: int, kin: Kin | None = None) -> AsyncIterator[Replica]:
        """Wait for a replica with room, hold one of its permits, give it back however the block is left."""
        replica = await self._acquire(choices, kin)
        try:
            yield replica
        finally:
            self._release(replica, choices)

    async def _acquire(self, choices: int, kin: Kin | None) -> Replica:
        if not self._waiting and (replica := self._take(choices, kin)) is not None:
            return replica
        future: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        entry = (future, choices, kin)
        self._waiting.append(entry)
        self._serve()  # those before it may wait for another replica
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._release(future.result(), choices)  # handed over in the very moment of the cancellation
            elif entry in self._waiting:
                self._waiting.remove(entry)
            raise

    def _take(self, choices: int, kin: Kin | None) -> Replica | None:
        place = None if kin is None else kin.place()
        replica = least_loaded(self.replicas if place is None else (place,), self.parallel, self._turn)
        if replica is not None:
            self._turn += place is None  # kin take one turn together
            replica.legs += 1
            replica.choices += choices
            if kin is not None:
                kin.replica = replica
        return replica

    def _release(self, replica: Replica, choices: int) -> None:
        replica.legs -= 1
        replica.choices -= choices
        self._serve()

    def _serve(self) -> None:
        """Give what is free to those who wait, in their order."""
        passed_by: list[_Waiter] = []
        while self._waiting:
            entry = self._waiting.popleft()
            future, choices, kin = entry
            if future.cancelled():
                continue
            free = self._take(choices, kin)
            if free is not None:
                future.set_result(free)
                continue
            passed_by.append(entry)
            if kin is None or kin.place() is None:
                break  # nothing is free anywhere
        self._waiting.extendleft(reversed(passed_by))
