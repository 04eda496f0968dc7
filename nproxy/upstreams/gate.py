"""The gate: legs wait here, in order, until a replica has a permit for them."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from nproxy import config
from nproxy.choices.events import Failure
from nproxy.upstreams.balancing import Draw, choose, standing
from nproxy.upstreams.breaker import Breaker
from nproxy.upstreams.health import Looks
from nproxy.upstreams.judging import serves
from nproxy.upstreams.kin import Kin
from nproxy.upstreams.replicas import AVOID_SECONDS, Replica

NOBODY_SECONDS = 1.0
"""When to come again where there is no replica at all."""
_ROUNDING = 0.01
"""Seconds that a timer may run out before its time."""


class NobodyError(Exception):
    """No replica may be asked. seconds: when one may."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Policy:
    """What the gate goes by.

    parallel: legs at once on each replica, None for any number. resumes: calls that have brought something can go on at
    another replica.
    """

    parallel: int | None = None
    resumes: bool = False
    breaker: config.Breaker | None = None
    health: config.Health = field(default_factory=lambda: config.Health(interval=None))


@dataclass(frozen=True, slots=True, eq=False)
class _Wish:
    """What a leg needs: a permit for so many choices, where its kin is, alone on the replica or not."""

    choices: int
    kin: Kin
    leg: int
    alone: bool


_Waiter = tuple[asyncio.Future[Replica], _Wish]


class Gate:
    """Hands out replicas, at most `parallel` legs on each at once; first come, first served.

    Legs that belong on one replica wait for that one, and others may pass them by. A leg that is to be alone waits for
    a replica without calls, and nobody passes it by, or there might never be one. A leg waits only while a replica that
    may be asked is full; where none may be asked, it is told at once. A leg that waits has not been sent, so none of
    its timers run. One gate serves all requests of an upstream.

    draw: a random number from 0 up to 1. clock: seconds that never go back.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        policy: Policy,
        *,
        draw: Draw = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.replicas: tuple[Replica, ...] = ()
        self.policy = policy
        self._draw = draw
        self._clock = clock
        self._waiting: deque[_Waiter] = deque()
        self._divided = False  # not all replicas serve the same models
        self._leaving: dict[str, Replica] = {}  # that are gone, and may have calls yet
        self.replace(replicas)

    def follow(self, policy: Policy) -> None:
        """Go by another policy; what it changed of breakers and health is begun anew."""
        before, self.policy = self.policy, policy
        for replica in (*self.replicas, *self._leaving.values()):
            if policy.breaker != before.breaker:
                replica.breaker = Breaker(policy.breaker)
            if policy.health != before.health:
                replica.looks = Looks(policy.health)
        self.serve()

    def replace(self, replicas: Sequence[Replica]) -> None:
        """Change which replicas there are; those that wait are served anew.

        A replica whose label stays keeps its object, with all that is in flight on it and known of it, and follows what
        is given now. One that leaves gets no new calls; those it has go on, and while they do it can come again.
        """
        here = {replica.label: replica for replica in self.replicas}
        known = {**self._leaving, **here}
        kept: dict[str, Replica] = {}
        for replica in replicas:
            if replica.label not in known:
                replica.breaker, replica.looks = Breaker(self.policy.breaker), Looks(self.policy.health)
            kept[replica.label] = known.get(replica.label, replica)
            kept[replica.label].follow(replica)
        for label in here.keys() - kept.keys():
            here[label].draining = True  # those whose kin is there go elsewhere
        gone = known.keys() - kept.keys()
        self._leaving = {label: known[label] for label in gone if known[label].legs}
        self.replicas = tuple(kept.values())
        self._divided = any(replica.models is not None for replica in self.replicas)
        self.serve()

    @property
    def waiting(self) -> int:
        """Legs that wait for a permit."""
        return len(self._waiting)

    def usable(self, model: str | None = None) -> bool:
        """Whether some replica is in order and may be asked now, be it that it has no room at the moment."""
        now = self._clock()
        return any(replica.serves(model) and replica.admits(self, now) for replica in self.replicas)

    def other(self, replica: Replica, kin: Kin | None = None) -> bool:
        """Whether another replica is in order, serves the model and has nothing that speaks against it."""
        now = self._clock()
        others = (other for other in self.replicas if other is not replica)
        model = None if kin is None else kin.model
        return any(one.serves(model) and one.admits(kin or self, now) and not one.flawed(now) for one in others)

    def in_order(self) -> list[Replica]:
        """All replicas, those that are to be preferred first."""
        now = self._clock()
        return sorted(self.replicas, key=lambda replica: (not replica.admits(self, now), replica.flawed(now)))

    def judge(self, kin: Kin, leg: int, failure: Failure | None) -> bool:
        """Take what became of a leg's last call; True where a breaker opened by it.

        A request counts once at each replica, however many of its legs failed there, and the leg avoids it.
        """
        replica = kin.at.get(leg)
        if replica is None:
            return False  # it was never called
        if failure is not None:
            kin.failed.setdefault(leg, set()).add(replica)
        verdict, now = serves(failure), self._clock()
        if verdict is True and replica not in kin.praised:
            kin.praised.add(replica)
            closed = replica.breaker.closed
            replica.breaker.went_well(now)
            if not closed:
                self._returned()
        elif verdict is False and replica not in kin.blamed:
            kin.blamed.add(replica)
            if replica.breaker.failed(kin, now):
                asyncio.get_running_loop().call_later(replica.breaker.wait(now) + _ROUNDING, self._may_be_tried)
                self.serve()
                return True
        return False

    def heard(self, replica: Replica, kin: Kin) -> None:
        """Note that a call brought something; with the first of a trial its replica is back."""
        closed = replica.breaker.closed
        replica.heard(kin)
        if replica.breaker.closed and not closed:
            self._returned()

    def _may_be_tried(self) -> None:
        """The wait of a breaker is over: where nobody comes, one who waits elsewhere in vain tries it."""
        self.serve()
        self.rescue(most=1)

    def _returned(self) -> None:
        self.serve()
        self.rescue()

    def rescue(self, most: int | None = None) -> None:
        """Give up calls that wait at replicas which are down, where another one can take them; no more than `most`.

        A call that has brought something is left to its own time limits, unless it can be resumed elsewhere.
        """
        down = [replica for replica in self.replicas if replica.looks.down and self.other(replica)]
        lines = [line for replica in down for line in replica.lifelines if self.policy.resumes or not line.spoken]
        for line in lines[:most]:
            line.cut()

    def looked(self, replica: Replica, status: int | None) -> bool:
        """Take what a look at a replica showed; True where it is down or up from now on.

        status: of the answer, None where none came. A replica that comes up again is tried at once.
        """
        well = status is not None and status < 500
        if not replica.looks.ended(well=well, answered=status is not None):
            return False
        replica.up = not replica.looks.down
        if replica.up:
            replica.breaker.relent()
        self._returned()
        return True

    @asynccontextmanager
    async def permit(
        self, choices: int, kin: Kin | None = None, *, leg: int = 0, alone: bool = False
    ) -> AsyncIterator[Replica]:
        """Wait for a replica with room, hold one of its permits, give it back however the block is left.

        leg: its number in the request. alone: hold all permits. Raises NobodyError where no replica may be asked.
        """
        wish = _Wish(choices, Kin() if kin is None else kin, leg, alone)
        replica = await self._acquire(wish)
        try:
            yield replica
        finally:
            self._release(replica, wish)

    async def _acquire(self, wish: _Wish) -> Replica:
        if not self._waiting and (replica := self._take(wish)) is not None:
            return replica
        future: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        entry = (future, wish)
        self._waiting.append(entry)
        self.serve()  # those before it may wait for another replica
        if wish.leg in wish.kin.failed:  # it may wait for others than one that is free, and that will do by then
            asyncio.get_running_loop().call_later(AVOID_SECONDS, self.serve)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._release(future.result(), wish)  # handed over in the very moment of the cancellation
            elif entry in self._waiting:
                self._waiting.remove(entry)
            raise

    def _take(self, wish: _Wish) -> Replica | None:
        """Give a leg its replica; None where it has to wait. Raises NobodyError."""
        now, kin = self._clock(), wish.kin
        replica = choose(
            self._standing(wish, now),
            self._draw,
            now,
            parallel=1 if wish.alone else self.policy.parallel,
            failed=kin.failed.get(wish.leg, ()),
            prompt=kin.prompt,
        )
        if replica is not None:
            replica.take(kin, wish.choices, now, alone=wish.alone)
            kin.replica = kin.at[wish.leg] = replica
        return replica

    def _standing(self, wish: _Wish, now: float) -> Sequence[Replica]:
        """The replicas that may take a leg, now or once they have room. Raises NobodyError where there are none."""
        place = wish.kin.place(wish.leg, now)
        if place is not None:
            return (place,)
        serving: Sequence[Replica] = self.replicas
        if self._divided:
            serving = [replica for replica in serving if replica.serves(wish.kin.model)]
        able = standing(serving, wish.kin, now)
        if not able:
            waits = [replica.breaker.wait(now, last_resort=True) for replica in serving if not replica.draining]
            raise NobodyError(max(NOBODY_SECONDS, min(waits, default=NOBODY_SECONDS)))
        return able

    @property
    def _full(self) -> bool:
        """Whether no replica has room, but some will."""
        parallel, there = self.policy.parallel, self.replicas
        return any(not one.draining for one in there) and not any(one.has_room(parallel) for one in there)

    def _release(self, replica: Replica, wish: _Wish) -> None:
        replica.release(wish.kin, wish.choices)
        self.serve()

    def serve(self) -> None:
        """Give what is free to those who wait, in their order: called when more or fewer may be asked than before.

        Thousands may wait, and this is called for each that comes and goes: so nothing is looked for where nothing is
        free, and only once for each model.
        """
        passed_by: list[_Waiter] = []
        waited_for: set[str | None] = set()  # models of those who cannot be served, whom their like do not pass by
        full = self._full
        while self._waiting and not full:
            entry = self._waiting.popleft()
            future, wish = entry
            if future.done():
                continue
            anywhere = wish.kin.place(wish.leg, self._clock()) is None
            if anywhere and wish.kin.model in waited_for:
                passed_by.append(entry)
                continue
            try:
                free = self._take(wish)
            except NobodyError as nobody:
                future.set_exception(nobody)
                continue
            if free is not None:
                future.set_result(free)
                full = self._full
                continue
            passed_by.append(entry)
            if wish.alone or (anywhere and not self._divided):
                break  # nothing is free anywhere, or nobody may pass
            if anywhere:
                waited_for.add(wish.kin.model)
        self._waiting.extendleft(reversed(passed_by))
