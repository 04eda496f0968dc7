"""The gate: legs wait here, in order, until a replica has a permit for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nproxy.upstreams.balancing import least_loaded
from nproxy.upstreams.kin import Kin
from nproxy.upstreams.replicas import Replica


@dataclass(frozen=True, slots=True, eq=False)
class _Wish:
    """What a leg needs: a permit for so many choices, where its kin is, alone on the replica or not."""

    choices: int
    kin: Kin | None
    alone: bool

    def place(self) -> Replica | None:
        """The one replica that will do, None where any will."""
        return None if self.kin is None else self.kin.place()


_Waiter = tuple[asyncio.Future[Replica], _Wish]


class Gate:
    """Hands out replicas, at most `parallel` legs on each at once; first come, first served.

    Legs that belong on one replica wait for that one, and others may pass them by. A leg that is to be alone waits for
    a replica without calls, and nobody passes it by, or there might never be one. A leg that waits has not been sent,
    so none of its timers run. One gate serves all requests of an upstream.
    """

    def __init__(self, replicas: Sequence[Replica], parallel: int | None) -> None:
        self.replicas: tuple[Replica, ...] = ()
        self.parallel = parallel
        self._waiting: deque[_Waiter] = deque()
        self._turn = 0
        self._divided = False  # not all replicas serve the same models
        self.replace(replicas)

    def replace(self, replicas: Sequence[Replica]) -> None:
        """Change which replicas there are; those that wait are served anew.

        A replica whose label stays keeps its object, with all that is in flight on it and known of it, and follows what
        is given now. One that leaves gets no new calls; those it has go on.
        """
        known = {replica.label: replica for replica in self.replicas}
        kept: dict[str, Replica] = {}
        for replica in replicas:
            kept[replica.label] = known.get(replica.label, replica)
            kept[replica.label].follow(replica)
        for label in known.keys() - kept.keys():
            known[label].draining = True  # those whose kin is there go elsewhere
        self.replicas = tuple(kept.values())
        self._divided = any(replica.models is not None for replica in self.replicas)
        self.serve()

    @property
    def waiting(self) -> int:
        """Legs that wait for a permit."""
        return len(self._waiting)

    @asynccontextmanager
    async def permit(self, choices: int, kin: Kin | None = None, *, alone: bool = False) -> AsyncIterator[Replica]:
        """Wait for a replica with room, hold one of its permits, give it back however the block is left.

        alone: hold all of them.
        """
        replica = await self._acquire(_Wish(choices, kin, alone))
        try:
            yield replica
        finally:
            self._release(replica, choices)

    async def _acquire(self, wish: _Wish) -> Replica:
        if not self._waiting and (replica := self._take(wish)) is not None:
            return replica
        future: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        entry = (future, wish)
        self._waiting.append(entry)
        self.serve()  # those before it may wait for another replica
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._release(future.result(), wish.choices)  # handed over in the very moment of the cancellation
            elif entry in self._waiting:
                self._waiting.remove(entry)
            raise

    def _take(self, wish: _Wish) -> Replica | None:
        place, parallel = wish.place(), 1 if wish.alone else self.parallel
        replica = least_loaded(self._serving(wish) if place is None else (place,), parallel, self._turn)
        if replica is not None:
            self._turn += place is None  # kin take one turn together
            replica.begun += 1
            replica.legs += 1
            replica.choices += wish.choices
            replica.reserved = wish.alone
            if wish.kin is not None:
                wish.kin.replica = replica
        return replica

    def _serving(self, wish: _Wish) -> Sequence[Replica]:
        """The replicas that serve the model of a leg."""
        if not self._divided or wish.kin is None:
            return self.replicas
        return [replica for replica in self.replicas if replica.serves(wish.kin.model)]

    def _release(self, replica: Replica, choices: int) -> None:
        replica.legs -= 1
        replica.choices -= choices
        replica.reserved = False
        self.serve()

    def serve(self) -> None:
        """Give what is free to those who wait, in their order: called when more may be free than was."""
        passed_by: list[_Waiter] = []
        while self._waiting:
            entry = self._waiting.popleft()
            future, wish = entry
            if future.cancelled():
                continue
            free = self._take(wish)
            if free is not None:
                future.set_result(free)
                continue
            passed_by.append(entry)
            if wish.alone or (wish.place() is None and not self._divided):
                break  # nothing is free anywhere, or nobody may pass
        self._waiting.extendleft(reversed(passed_by))
