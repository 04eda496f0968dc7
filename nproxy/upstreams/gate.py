"""The gate of an upstream: its replicas, their state, and a slot of one of them for each leg."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nproxy import config
from nproxy.choices.events import Failure
from nproxy.choices.failure_table import LOOP_DETECTED, Follows, follows, no_room
from nproxy.upstreams.balancing import Draw
from nproxy.upstreams.breaker import Breaker
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.cancel_handle import CancelHandle
from nproxy.upstreams.health_checks import HealthChecks
from nproxy.upstreams.overload.queues import OverloadQueues
from nproxy.upstreams.replica_call import ReplicaCall
from nproxy.upstreams.replica_slots import ReplicaSlots
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.slot_queue import SlotQueue
from nproxy.upstreams.timers import ROUNDING
from nproxy.upstreams.verdicts import serves

PATIENCE_SECONDS = 10.0
"""How long a request waits for capacity unless another value is set; as long as for the gateway's own permits."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of a gate.

    parallel: legs at once on each replica; None for no limit. resumes: a call that has brought something can be
    continued at another replica. breaker: None if breakers never open.
    """

    parallel: int | None = None
    resumes: bool = False
    breaker: config.Breaker | None = None
    health: config.Health = field(default_factory=lambda: config.Health(interval=None))


class Gate:
    """Hands out replicas, and takes the results of the calls and health checks there.

    One gate serves all requests of an upstream. A leg that waits here has not been sent, so none of its timers run.

    queues: where legs wait that were refused for lack of capacity. patience: see OverloadQueue. draw: a random number
    from 0 up to 1. clock: a monotonic time in seconds.
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
        self._slots = ReplicaSlots(policy.parallel, draw, clock)
        self._slot_queue = SlotQueue(self._slots)
        self.patience = PATIENCE_SECONDS
        self.queues = OverloadQueues(draw, clock, self._any_beside, lambda: self.patience)
        self._leaving: dict[str, Replica] = {}  # that were removed and still have calls, by label
        self._legs_elsewhere: Mapping[str, int] = {}  # by the labels of replicas
        self.replace(replicas)

    def follow(self, policy: Policy) -> None:
        """Follow another policy. Breakers and health checks whose settings changed start anew."""
        before, self.policy = self.policy, policy
        self._slots.parallel = policy.parallel
        for replica in (*self.replicas, *self._leaving.values()):
            if policy.breaker != before.breaker:
                replica.breaker = Breaker(policy.breaker)
            if policy.health != before.health:
                replica.health = HealthChecks(policy.health)
        self._slot_queue.serve()

    def replace(self, replicas: Sequence[Replica]) -> None:
        """Change which replicas there are, and serve the legs that wait.

        A replica whose label stays keeps its object, with its calls in flight and its state, and takes over the new
        attributes. A replica that leaves gets no new calls. Those that it has go on, and while they do it can come back
        as the same object.
        """
        here = {replica.label: replica for replica in self.replicas}
        served = _served(here.values())
        known = {**self._leaving, **here}
        kept: dict[str, Replica] = {}
        for replica in replicas:
            if replica.label not in known:
                replica.breaker, replica.health = Breaker(self.policy.breaker), HealthChecks(self.policy.health)
            kept[replica.label] = known.get(replica.label, replica)
            kept[replica.label].follow(replica)
        for label in here.keys() - kept.keys():
            here[label].draining = True  # legs whose group is there go elsewhere
        self._count_legs_elsewhere(kept.values())
        gone = known.keys() - kept.keys()
        self._leaving = {label: known[label] for label in gone if known[label].legs}
        self._slots.replace(tuple(kept.values()))
        self.queues.replicas_changed(self.replicas)
        self._slot_queue.serve()
        if _served(kept.values()) - served:
            self.queues.capacity_may_have_grown()

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """All current replicas; not those that were removed and still have calls."""
        return self._slots.replicas

    @property
    def waiting(self) -> int:
        """Number of legs that wait for a slot or for capacity."""
        return len(self._slot_queue) + self.queues.waiting

    def usable(self, model: str | None = None) -> bool:
        """Whether a healthy replica for the model may be called now. It may be full at the moment."""
        now = self.clock()
        for replica in self._slots.replicas:  # noqa: SIM110 - most have one, and a generator costs more than it
            if replica.serves(model) and replica.admits(self, now):
                return True
        return False

    def other(self, replica: Replica, group: CallGroup | None = None) -> bool:
        """Whether another replica is healthy, serves the group's model, and is not flawed (see Replica.flawed)."""
        return self._any_beside({replica}, None if group is None else group.model, group)

    def untried(self, group: CallGroup, leg: int) -> bool:
        """The same for a replica at which this leg has not failed."""
        return self._any_beside(group.avoided(leg), group.model, group)

    def _any_beside(self, some: Collection[Replica], model: str | None, group: CallGroup | None = None) -> bool:
        """The same for any replica that is not among `some`."""
        now = self.clock()
        others = (one for one in self.replicas if one not in some)
        return any(one.serves(model) and one.admits(group or self, now) and not one.flawed(now) for one in others)

    def in_order(self) -> list[Replica]:
        """All replicas, the preferred ones first."""
        now = self.clock()
        return sorted(self.replicas, key=lambda replica: (not replica.admits(self, now), replica.flawed(now)))

    def judge(self, group: CallGroup, leg: int, failure: Failure | None) -> Replica | None:
        """Take the result of a leg's last call, once. Returns the replica if its breaker opened by it.

        A request counts once at each replica, however many of its legs failed there. While its breaker is not closed,
        each trial that fails counts. A leg avoids a replica where it failed.
        """
        replica = group.at.pop(leg, None)
        if replica is None:
            return None  # it was never called, or this call was judged before
        if failure is not None and not no_room(failure):
            group.failed.setdefault(leg, set()).add(replica)
        verdict, now = serves(failure), self.clock()
        if verdict is True and replica not in group.praised:
            group.praised.add(replica)
            if replica.breaker.went_well(now):
                self._returned()
        elif failure is not None and verdict is False and not (replica in group.blamed and replica.breaker.closed):
            group.blamed.add(replica)
            if replica.breaker.failed(group, now, silent=follows(failure, Follows.SILENT)):
                asyncio.get_running_loop().call_later(replica.breaker.wait(now) + ROUNDING, self._may_be_tried)
                self._slot_queue.serve()
                return replica
        return None

    def heard(self, replica: Replica, group: CallGroup) -> None:
        """Note that a call brought something. The first event of a trial closes the breaker of its replica."""
        now = self.clock()
        replica.health.heard(now)
        if replica.breaker.spoke(group, now):
            self._returned()

    def _may_be_tried(self) -> None:
        """The wait of a breaker is over. Let a leg that waits try the replica, or else a call stuck elsewhere."""
        self._slot_queue.serve()
        self.rescue(most=1)

    def _returned(self) -> None:
        self._slot_queue.serve()
        self.queues.capacity_may_have_grown()
        self.rescue()

    def rescue(self, most: int | None = None) -> None:
        """Give up calls that wait at replicas which are down, if another replica can take them; at most `most` calls.

        A call that has brought something is left to its own time limits, unless it can be resumed elsewhere. So is one
        that must be made once, while its replica answers health checks, if only with errors.
        """
        handles: list[CancelHandle] = []
        for replica in self.replicas:
            if replica.health.down:
                asked_for = {handle.model for handle in replica.cancel_handles}
                had = {model for model in asked_for if self._any_beside({replica}, model)}
                works = replica.health.answered
                stuck = (handle for handle in replica.cancel_handles if self.policy.resumes or not handle.spoken)
                handles += (handle for handle in stuck if handle.model in had and not (works and handle.once))
        for handle in handles[:most]:
            handle.cut()

    def note_check(self, replica: Replica, status: int | None) -> bool:
        """Take the result of a check of a replica; True if the replica is down or up from now on.

        status: of the answer; None if none came. A replica that comes up again may be called at once.
        """
        return self._settled(replica, changed=replica.health.ended(well=_well(status), answered=_answered(status)))

    def note_peer_check(self, replica: Replica, status: int | None, began: float, jitter: float) -> bool:
        """The same as `note_check` for a check by another process of this gateway.

        began, jitter: see `HealthChecks.note_peer_check`.
        """
        if status is not None:
            replica.reached_by_peer(began)
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

    def attempt(
        self, choices: int, group: CallGroup | None = None, *, leg: int = 0, alone: bool = False, waits: bool = False
    ) -> ReplicaCall:
        """Return the call of a replica, whose slot is yet to be taken or waited for.

        leg: its number in the request. alone: no other call may use the replica meanwhile. waits: the leg was refused
        for lack of capacity, and is to wait until there is some.
        """
        group = CallGroup() if group is None else group
        queue = None if group.account is None else self.queues.of(group.account)
        if (
            queue is not None
            and not group.fallback_available
            and (queue.waiting or queue.announcements.workers_go_first())
        ):
            waits = True
        return ReplicaCall(self._slot_queue, queue, waits, group, leg, choices, alone)

    @property
    def legs(self) -> dict[str, int]:
        """The calls in flight at each replica that has some, by label, if their number is limited."""
        if self.policy.parallel is None:
            return {}
        return {one.label: one.legs for one in (*self.replicas, *self._leaving.values()) if one.legs}

    def take_legs_elsewhere(self, legs: Mapping[str, int]) -> None:
        """Take the calls that the predecessors of this process still have at each replica, by label."""
        self._legs_elsewhere = legs
        self._count_legs_elsewhere(self.replicas)
        self._slot_queue.serve()

    def _count_legs_elsewhere(self, replicas: Iterable[Replica]) -> None:
        for replica in replicas:
            replica.legs_elsewhere = self._legs_elsewhere.get(replica.label, 0)


def _served(replicas: Iterable[Replica]) -> set[tuple[str, frozenset[str] | None]]:
    """Which models are served by which replicas; None for all models of the upstream."""
    return {(replica.label, replica.models) for replica in replicas if not replica.draining}


def _well(status: int | None) -> bool:
    return status is not None and status < 500


def _answered(status: int | None) -> bool:
    """Whether a server answered: a request that led back to this gateway found none."""
    return status is not None and status != LOOP_DETECTED
