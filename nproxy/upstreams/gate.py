"""The gate: legs wait here, in order, until a replica has a permit for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from nproxy.upstreams.balancing import least_loaded
from nproxy.upstreams.replicas import Replica


class Gate:
    """Hands out replicas, at most `parallel` legs on each at once; first come, first served.

    A leg that waits has not been sent, so none of its timers run. One gate serves all requests of an upstream.
    """

    def __init__(self, replicas: Sequence[Replica], parallel: int | None) -> None:
        self.replicas = tuple(replicas)
        self.parallel = parallel
        self._waiting: deque[tuple[asyncio.Future[Replica], int]] = deque()
        self._turn = 0

    @property
    def waiting(self) -> int:
        """Legs that wait for a permit."""
        return len(self._waiting)

    @asynccontextmanager
    async def permit(self, choices: int) -> AsyncIterator[Replica]:
        """Wait for a replica with room, hold one of its permits, give it back however the block is left."""
        replica = await self._acquire(choices)
        try:
            yield replica
        finally:
            self._release(replica, choices)

    async def _acquire(self, choices: int) -> Replica:
        if not self._waiting and (replica := self._take(choices)) is not None:
            return replica
        future: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        entry = (future, choices)
        self._waiting.append(entry)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._release(future.result(), choices)  # handed over in the very moment of the cancellation
            elif entry in self._waiting:
                self._waiting.remove(entry)
            raise

    def _take(self, choices: int) -> Replica | None:
        replica = least_loaded(self.replicas, self.parallel, self._turn)
        if replica is not None:
            self._turn += 1
            replica.legs += 1
            replica.choices += choices
        return replica

    def _release(self, replica: Replica, choices: int) -> None:
        replica.legs -= 1
        replica.choices -= choices
        while self._waiting:
            future, wanted = self._waiting[0]
            if future.cancelled():
                self._waiting.popleft()
                continue
            free = self._take(wanted)
            if free is None:
                return
            self._waiting.popleft()
            future.set_result(free)
