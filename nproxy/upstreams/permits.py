"""Permits: what a leg needs, and the replica that has it to give."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nproxy.openai.frozen import frozen
from nproxy.upstreams.balancing import Draw, choose, standing
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.replicas import AVOID_SECONDS, Replica

NOBODY_SECONDS = 1.0
"""When to come again where there is no replica at all."""
ROUNDING = 0.01
"""Seconds that a timer may run out before its time."""


class NoReplicaError(Exception):
    """No replica may be asked. seconds: when one may."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@frozen
class PermitRequest:
    """What a leg needs: a permit for so many choices, where its group is, alone on the replica or not."""

    choices: int
    group: CallGroup
    leg: int
    alone: bool

    @property
    def has_failed(self) -> bool:
        """Whether there are replicas that the leg is to avoid, having failed there."""
        return bool(self.group.avoided(self.leg))


class Permits:
    """The permits of some replicas: at most `parallel` legs on each at once, None for any number.

    divided: not all replicas serve the same models. draw: a random number from 0 up to 1. clock: seconds that never go
    back.
    """

    def __init__(self, parallel: int | None, draw: Draw, clock: Callable[[], float]) -> None:
        self.parallel = parallel
        self.replicas: tuple[Replica, ...] = ()
        self.divided = False
        self._draw = draw
        self._clock = clock

    def replace(self, replicas: tuple[Replica, ...]) -> None:
        """Change whose permits they are."""
        self.replicas = replicas
        self.divided = any(replica.models is not None for replica in replicas)

    @property
    def spent(self) -> bool:
        """Whether no replica has room, but some will."""
        parallel, there = self.parallel, self.replicas
        return any(not one.draining for one in there) and not any(one.has_room(parallel) for one in there)

    def place(self, request: PermitRequest) -> Replica | None:
        """The one replica that will do for a leg; None where others will, too."""
        return request.group.place(request.leg, self._clock())

    def avoided_seconds(self, request: PermitRequest) -> float:
        """After how many seconds, at the latest, another replica may do for a leg that has failed."""
        now = self._clock()
        ends = [max(one.avoid_until, one.resting_until) - now for one in request.group.avoided(request.leg)]
        return ROUNDING + min([AVOID_SECONDS, *(seconds for seconds in ends if seconds > 0)])

    def take(self, request: PermitRequest) -> Replica | None:
        """Give a leg its replica; None where it has to wait. Raises NoReplicaError."""
        now, group = self._clock(), request.group
        replica = choose(
            self._standing(request, now),
            self._draw,
            now,
            parallel=1 if request.alone else self.parallel,
            failed=group.avoided(request.leg),
            prompt=group.prompt,
        )
        if replica is not None:
            replica.take(group, request.choices, now, alone=request.alone)
            group.replica = group.at[request.leg] = group.uncounted[request.leg] = replica
            if group.placed is not None:
                group.placed(request.leg, replica)
        return replica

    def _standing(self, request: PermitRequest, now: float) -> Sequence[Replica]:
        """The replicas that may take a leg, now or once they have room. Raises NoReplicaError where there are none."""
        place = request.group.place(request.leg, now)
        if place is not None:
            return (place,)
        serving: Sequence[Replica] = self.replicas
        if self.divided:
            serving = [replica for replica in serving if replica.serves(request.group.model)]
        able = standing(serving, request.group, now)
        if not able:
            waits = [replica.breaker.wait(now, last_resort=True) for replica in serving if not replica.draining]
            raise NoReplicaError(max(NOBODY_SECONDS, min(waits, default=NOBODY_SECONDS)))
        return able
