"""The replicas that refused calls of an account for lack of capacity, and when each may be called again. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from nproxy.choices.retry import LONGEST_RETRY_AFTER_SECONDS
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.timers import ROUNDING


@dataclass(slots=True, eq=False)
class FullReplica:
    """What is known of a full replica. Times of the queue's clock, in seconds.

    refused_at: when it last refused a call. no_probe_before: by its Retry-After, it is not probed before.
    no_call_before: before this time it gets no call even if another one ends.
    """

    refused_at: float = 0.0
    no_probe_before: float = 0.0
    no_call_before: float = 0.0


class FullReplicas(Collection[Replica]):
    """The full replicas of one account.

    other_usable: whether a healthy replica exists that is not among the given ones.
    """

    def __init__(self, other_usable: Callable[[Collection[Replica]], bool]) -> None:
        self._other_usable = other_usable
        self._full: dict[Replica, FullReplica] = {}

    def __contains__(self, replica: object) -> bool:
        return replica in self._full

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._full)

    def __len__(self) -> int:
        return len(self._full)

    def all_but(self, replica: Replica | None) -> set[Replica]:
        """All full replicas except this one."""
        return self._full.keys() - {replica}

    def keep(self, there: Collection[Replica]) -> None:
        """Forget all replicas but these."""
        self._full = {replica: full for replica, full in self._full.items() if replica in there}

    def forget(self, now: float) -> None:
        """Assume capacity everywhere again, except where a Retry-After still holds."""
        self._full = {replica: full for replica, full in self._full.items() if now < full.no_probe_before}

    def note_full(self, replica: Replica, now: float, wait: float | None) -> FullReplica:
        """Note that a replica is full; return what is known of it. wait: the seconds of its Retry-After, if any."""
        # a draining replica is not called again, so nothing is kept of it
        full = FullReplica() if replica.draining else self._full.setdefault(replica, FullReplica())
        full.refused_at = now
        if wait is not None:
            full.no_probe_before = max(full.no_probe_before, now + wait)
        return full

    def note_refused(self, replica: Replica, now: float) -> None:
        """Note that a replica refused a call, for lack of capacity or another reason."""
        if replica in self._full:
            self._full[replica].refused_at = now

    @property
    def everywhere(self) -> bool:
        """Whether all healthy replicas are full."""
        return not self._other_usable(self._full)

    def may_be_called(self, replica: Replica | None, now: float) -> bool:
        """Whether a call may be made now that another has ended. replica: where it ended; None if that is not known."""
        if replica is not None:
            return replica not in self._full or now >= self._full[replica].no_call_before
        return not self.everywhere or min((full.no_call_before for full in self._full.values()), default=0.0) <= now

    def another_soon(self, replica: Replica, now: float) -> bool:
        """Whether another replica is usable, or is full, healthy, and may be called again within the longest wait."""
        others = ((one, full) for one, full in self._full.items() if one is not replica)
        latest = now + LONGEST_RETRY_AFTER_SECONDS
        soon = any(full.no_probe_before <= latest and one.admits(self, now) for one, full in others)
        return soon or self._other_usable({replica})

    def next_to_probe(self, now: float) -> Replica | None:
        """The replica that refused longest ago; None if others have capacity."""
        if not self.everywhere:
            return None
        may = [replica for replica, full in self._full.items() if now >= full.no_probe_before - ROUNDING]
        return min(may or self._full, key=lambda replica: self._full[replica].refused_at, default=None)

    @property
    def no_probe_before(self) -> float:
        """When the first of them may be probed; 0 if others have capacity."""
        if not self.everywhere:
            return 0.0
        return min((full.no_probe_before for full in self._full.values()), default=0.0)
