"""The slots of replicas: how many calls each may have at once, and which replica a leg gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from nproxy.upstreams.affinity import Homes
from nproxy.upstreams.balancing import COMPARED, Draw, all_fit, at_a_glance, choose, standing
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.overload.call_attempt import CallAttempt
from nproxy.upstreams.replicas import AVOID_SECONDS, Replica
from nproxy.upstreams.timers import ROUNDING

LOOK_SECONDS = 0.05
"""How long it may take until a replica that must not be called is seen by legs that are not sent there."""
NOBODY_SECONDS = 1.0
"""The shortest wait that NoReplicaError tells, and the wait if there is no replica at all."""


class NoReplicaError(Exception):
    """No replica may be called now. seconds: until one may."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class ReplicaSlots:
    """The slots of an upstream's replicas: at most `parallel` legs on each at once; None for no limit.

    divided: not all replicas serve the same models. draw: a random number from 0 up to 1. clock: a monotonic time in
    seconds.
    """

    def __init__(self, parallel: int | None, draw: Draw, clock: Callable[[], float]) -> None:
        self.parallel = parallel
        self.replicas: tuple[Replica, ...] = ()
        self.divided = False
        self._even = False  # all replicas have the same weight
        self._homes = Homes(())
        self._fit, self._looked_at = False, -inf  # whether all may be called, as last looked at
        self._draw = draw
        self._clock = clock

    def replace(self, replicas: tuple[Replica, ...]) -> None:
        """Change which replicas there are."""
        self.replicas = replicas
        self.divided = any(replica.models is not None for replica in replicas)
        self._even = len({replica.weight for replica in replicas}) == 1
        self._homes = Homes(replicas)
        self._looked_at = -inf

    @property
    def spent(self) -> bool:
        """Whether no replica has a free slot, but some will have one."""
        parallel, there = self.parallel, self.replicas
        return any(not one.draining for one in there) and not any(one.has_room(parallel) for one in there)

    def common_replica(self, attempt: CallAttempt) -> Replica | None:
        """The only replica that a leg may go to; None if it may go to others too."""
        return attempt.group.common_replica(attempt.leg, self._clock())

    def avoided_seconds(self, attempt: CallAttempt) -> float:
        """After how many seconds, at the latest, another replica may be acceptable for a leg that has failed."""
        now = self._clock()
        ends = [max(one.avoid_until, one.resting_until) - now for one in attempt.group.avoided(attempt.leg)]
        return ROUNDING + min([AVOID_SECONDS, *(seconds for seconds in ends if seconds > 0)])

    def take(self, attempt: CallAttempt) -> Replica | None:
        """Assign a replica to a leg and count its call there; None if the leg has to wait. Raises NoReplicaError."""
        now, group = self._clock(), attempt.group
        parallel = 1 if attempt.alone else self.parallel
        failed = group.avoided(attempt.leg)
        replica = None
        if not (failed or self.divided or (group.together and group.replica is not None)):
            replica = self._at_a_glance(group, now, parallel)
        if replica is None:
            able = self._standing(attempt, now)
            replica = choose(able, self._draw, now, parallel=parallel, failed=failed, prompt=group.prompt)
        if replica is not None:
            replica.begin_call(group, attempt.choices, now, alone=attempt.alone)
            group.replica = group.at[attempt.leg] = group.uncounted[attempt.leg] = replica
            if group.assigned is not None:
                group.assigned(attempt.leg, replica)
        return replica

    def _at_a_glance(self, group: CallGroup, now: float, parallel: int | None) -> Replica | None:
        """The replica for a leg that may go to any, if that is known without looking at all of them; else None."""
        all_compared = group.prompt is None and len(self.replicas) <= COMPARED
        if not all_compared and (parallel is not None or not self._all_fit(now)):
            return None  # if only a few fit, all of them are compared, and a prompt may have another home
        if group.prompt is None:
            return at_a_glance(self.replicas, group, self._draw, now, parallel) if self._even else None
        home = self._homes.of(group.prompt)
        return home if all_fit((home,), group, now, None) else None

    def _all_fit(self, now: float) -> bool:
        """Whether all replicas may be called; LOOK_SECONDS ago at the most."""
        if now >= self._looked_at + LOOK_SECONDS:
            self._looked_at, self._fit = now, bool(self.replicas) and all_fit(self.replicas, None, now, None)
        return self._fit

    def _standing(self, attempt: CallAttempt, now: float) -> Sequence[Replica]:
        """The replicas that may take a leg, now or once they have a free slot. Raises NoReplicaError if none may."""
        common = attempt.group.common_replica(attempt.leg, now)
        if common is not None:
            return (common,)
        serving: Sequence[Replica] = self.replicas
        if self.divided:
            serving = [replica for replica in serving if replica.serves(attempt.group.model)]
        able = standing(serving, attempt.group, now, attempt.group.failed.get(attempt.leg, ()))
        if not able:
            waits = [replica.breaker.wait(now, last_resort=True) for replica in serving if not replica.draining]
            raise NoReplicaError(max(NOBODY_SECONDS, min(waits, default=NOBODY_SECONDS)))
        return able
