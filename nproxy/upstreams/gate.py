"""The gate: which replicas there are, how they fare, and the permit of one for each leg."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from nproxy import config
from nproxy.choices.events import Failure, Room
from nproxy.choices.retry import LOOP_DETECTED, no_room
from nproxy.upstreams.balancing import Draw
from nproxy.upstreams.breaker import Breaker
from nproxy.upstreams.call_attempt import CallAttempt
from nproxy.upstreams.call_group import Account, CallGroup
from nproxy.upstreams.cancel_handle import CancelHandle
from nproxy.upstreams.health_checks import HealthChecks
from nproxy.upstreams.overload_queue import OverloadQueue
from nproxy.upstreams.peer_workers import PeerNews, PeerWorkers, What
from nproxy.upstreams.permit_queue import PermitQueue
from nproxy.upstreams.permits import ROUNDING, PermitRequest, Permits
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.shared_capacity import SharedCapacity
from nproxy.upstreams.verdicts import serves, silent

PATIENCE_SECONDS = 10.0
"""How long a request waits for room, where nothing else is said; as long as for the gateway's own permits."""
MOST_ACCOUNTS = 1024
"""So many are remembered of which no call is in flight."""


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


class Gate:
    """Hands out replicas, and takes what became of the calls there and of looks at them.

    A leg that waits has not been sent, so none of its timers run. One gate serves all requests of an upstream.

    patience: see OverloadQueue. draw: a random number from 0 up to 1. clock:
    seconds that never go back.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        policy: Policy,
        *,
        draw: Draw = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy
        self.clock = clock
        self._permits = Permits(policy.parallel, draw, clock)
        self._waiting = PermitQueue(self._permits)
        self.patience = PATIENCE_SECONDS
        self._draw = draw
        self._queues: dict[Account, OverloadQueue] = {}
        self._shared = SharedCapacity()
        self._shares: Callable[[Account], PeerWorkers] | None = None
        self._leaving: dict[str, Replica] = {}  # that are gone, and may have calls yet
        self.replace(replicas)

    def follow(self, policy: Policy) -> None:
        """Go by another policy; what it changed of breakers and health is begun anew."""
        before, self.policy = self.policy, policy
        self._permits.parallel = policy.parallel
        for replica in (*self.replicas, *self._leaving.values()):
            if policy.breaker != before.breaker:
                replica.breaker = Breaker(policy.breaker)
            if policy.health != before.health:
                replica.health = HealthChecks(policy.health)
        self._waiting.serve()

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
                replica.breaker, replica.health = Breaker(self.policy.breaker), HealthChecks(self.policy.health)
            kept[replica.label] = known.get(replica.label, replica)
            kept[replica.label].follow(replica)
        for label in here.keys() - kept.keys():
            here[label].draining = True  # those whose group is there go peers
        gone = known.keys() - kept.keys()
        self._leaving = {label: known[label] for label in gone if known[label].legs}
        self._permits.replace(tuple(kept.values()))
        for queue in self._queues.values():
            queue.replicas_changed(self.replicas)
        self._shared.keep(self.replicas)
        self._waiting.serve()
        self._may_have_room()

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """All that there are; those that leave and have calls yet are none of them."""
        return self._permits.replicas

    @property
    def waiting(self) -> int:
        """Legs that wait for a permit, or for room."""
        return len(self._waiting) + sum(len(queue.waiting) for queue in self._queues.values())

    def usable(self, model: str | None = None) -> bool:
        """Whether some replica is in order and may be asked now, be it that it has no room at the moment."""
        now = self.clock()
        for replica in self._permits.replicas:  # noqa: SIM110 - most have one, and a generator costs more than it
            if replica.serves(model) and replica.admits(self, now):
                return True
        return False

    def other(self, replica: Replica, group: CallGroup | None = None) -> bool:
        """Whether another replica is in order, serves the model and has nothing that speaks against it."""
        return self._any_beside({replica}, None if group is None else group.model, group)

    def _any_beside(self, some: Collection[Replica], model: str | None, group: CallGroup | None = None) -> bool:
        """The same for any replica beside these."""
        now = self.clock()
        others = (one for one in self.replicas if one not in some)
        return any(one.serves(model) and one.admits(group or self, now) and not one.flawed(now) for one in others)

    def in_order(self) -> list[Replica]:
        """All replicas, those that are to be preferred first."""
        now = self.clock()
        return sorted(self.replicas, key=lambda replica: (not replica.admits(self, now), replica.flawed(now)))

    def judge(self, group: CallGroup, leg: int, failure: Failure | None) -> Replica | None:
        """Take what became of a leg's last call, once; gives its replica where a breaker opened by it.

        A request counts once at each replica, however many of its legs failed there, but for trials of one whose
        breaker is not closed. The leg avoids it.
        """
        replica = group.at.pop(leg, None)
        if replica is None:
            return None  # it was never called, or its call is judged already
        if failure is not None and not no_room(failure):
            group.failed.setdefault(leg, set()).add(replica)
        verdict, now = serves(failure), self.clock()
        if verdict is True and replica not in group.praised:
            group.praised.add(replica)
            closed = replica.breaker.closed
            replica.breaker.went_well(now)
            if not closed:
                self._returned()
        elif failure is not None and verdict is False and not (replica in group.blamed and replica.breaker.closed):
            group.blamed.add(replica)
            if replica.breaker.failed(group, now, silent=silent(failure)):
                asyncio.get_running_loop().call_later(replica.breaker.wait(now) + ROUNDING, self._may_be_tried)
                self._waiting.serve()
                return replica
        return None

    def heard(self, replica: Replica, group: CallGroup) -> None:
        """Note that a call brought something; with the first of a trial its replica is back."""
        if replica.heard(group, self.clock()):
            self._returned()

    def _may_be_tried(self) -> None:
        """The wait of a breaker is over: where nobody comes, one who waits peers in vain tries it."""
        self._waiting.serve()
        self.rescue(most=1)

    def _returned(self) -> None:
        self._waiting.serve()
        self._may_have_room()
        self.rescue()

    def _may_have_room(self) -> None:
        """Have those who wait for room find out what a replica that came, or came back, is good for."""
        for queue in self._queues.values():
            if queue.waiting:
                queue.capacity_may_have_grown()

    def rescue(self, most: int | None = None) -> None:
        """Give up calls that wait at replicas which are down, where another one can take them; no more than `most`.

        A call that has brought something is left to its own time limits, unless it can be resumed peers.
        """
        lines: list[CancelHandle] = []
        for replica in self.replicas:
            if replica.health.down:
                asked_for = {line.model for line in replica.cancel_handles}
                had = {model for model in asked_for if self._any_beside({replica}, model)}
                stuck = (line for line in replica.cancel_handles if self.policy.resumes or not line.spoken)
                lines += (line for line in stuck if line.model in had)
        for line in lines[:most]:
            line.cut()

    def note_check(self, replica: Replica, status: int | None) -> bool:
        """Take what a look at a replica showed; True where it is down or up from now on.

        status: of the answer, None where none came. A replica that comes up again is tried at once.
        """
        return self._settled(replica, changed=replica.health.ended(well=_well(status), answered=_answered(status)))

    def note_peer_check(self, replica: Replica, status: int | None, began: float, jitter: float) -> bool:
        """Take what another process of this gateway saw; as `looked`. began, jitter: see `HealthChecks.told`."""
        changed = replica.health.note_peer_check(began, jitter, well=_well(status), answered=_answered(status))
        return self._settled(replica, changed=changed)

    def _settled(self, replica: Replica, *, changed: bool) -> bool:
        if not changed:
            return False
        replica.up = not replica.health.down
        if replica.up:
            replica.breaker.relent()
        self._returned()
        return True

    def permit(
        self, choices: int, group: CallGroup | None = None, *, leg: int = 0, alone: bool = False, waits: bool = False
    ) -> Permit:
        """A permit of a replica, to be waited for and held by `async with`, and given back however the block is left.

        leg: its number in the request. alone: hold all permits. waits: the leg was turned away for want of room, and is
        to wait till others have left some. Entering raises NoReplicaError where no replica may be asked.
        """
        group = CallGroup() if group is None else group
        queue = None if group.account is None else self._queue(group.account)
        if queue is not None and not group.fallback_available and (queue.waiting or queue.peers_go_first()):
            waits = True
        return Permit(self._waiting, PermitRequest(choices, group, leg, alone), queue, waits=waits)

    def share_room(self, upstream: str, process: str, tell: Callable[[PeerNews], None]) -> None:
        """Take turns with other processes of this gateway. process: what they call this one. tell: sends them news."""

        def peers(account: Account) -> PeerWorkers:
            def send(what: What, worker: str, label: str, requests: int) -> None:
                tell(PeerNews(upstream, *account, what, worker, label, requests))

            return PeerWorkers(process, send)

        self._shares = peers
        for account, queue in self._queues.items():
            queue.peers = peers(account)

    def take_news(self, news: PeerNews) -> None:
        """Learn what another process tells."""
        replica = next((one for one in self.replicas if one.label == news.replica), None)
        self._queue((news.model, news.caller)).hear(news.what, news.process, replica, news.requests)

    def remind(self) -> None:
        """Tell other processes again where some wait here; from time to time."""
        for queue in self._queues.values():
            queue.remind()

    def _queue(self, account: Account) -> OverloadQueue:
        queue = self._queues.get(account)
        if queue is None:
            if len(self._queues) >= MOST_ACCOUNTS:
                self._forget_idle_queues()
            beside = partial(self._any_beside, model=account[0])
            queue = OverloadQueue(account[0], self._shared, self._draw, self.clock, beside, lambda: self.patience)
            self._queues[account] = queue
            if self._shares is not None:
                queue.peers = self._shares(account)
        return queue

    def _forget_idle_queues(self) -> None:
        for account, queue in [*self._queues.items()]:
            if not (queue.calls or queue.waiting):
                queue.forgotten()
                del self._queues[account]


class Permit(CallAttempt):
    """A permit, held while an `async with` block runs, which is given the replica."""

    __slots__ = ("_queue", "_request", "_waiting", "_waits", "replica")

    replica: Replica

    def __init__(
        self, waiting: PermitQueue, request: PermitRequest, queue: OverloadQueue | None, *, waits: bool
    ) -> None:
        super().__init__(request.group, request.leg)
        self._waiting = waiting
        self._request = request
        self._queue = queue
        self._waits = waits

    async def __aenter__(self) -> Replica:
        request, queue = self._request, self._queue
        if queue is None:
            self.replica = self._waiting.at_once(request) or await self._waiting.acquire(request)
            return self.replica
        if self._waits:
            await queue.wait_turn(self)
        else:
            queue.begin(self)
        try:
            self.replica = self._waiting.at_once(request) or await self._waiting.acquire(request)
        except BaseException:
            queue.abandoned(self)
            raise
        return self.replica

    async def __aexit__(self, *_: object) -> None:
        self._waiting.give_back(self.replica, self._request)
        if self._queue is not None:
            self._queue.ended(self, self.replica)

    def refused(self, wait: float | None, *, sure: bool) -> Room:
        """Note that the replica turned the call away for want of room; gives where there may be some.

        wait, sure: see OverloadQueue.refused.
        """
        full = self.group.full.get(self.leg, ())
        again = self.replica in full if self.admitted_by else bool(full)
        self.group.turned_away(self.leg, self.replica)
        return "" if self._queue is None else self._queue.refused(self, self.replica, wait, sure=sure or again)


def _well(status: int | None) -> bool:
    return status is not None and status < 500


def _answered(status: int | None) -> bool:
    """Whether somebody else answered: one that leads back to who looks has nobody behind it."""
    return status is not None and status != LOOP_DETECTED
