"""The parts of an overload queue, put together for one account of one replica; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from nproxy.upstreams.call_group import CallGroup, QueueStats
from nproxy.upstreams.overload.account_calls import AccountCalls
from nproxy.upstreams.overload.announcements import Announcements
from nproxy.upstreams.overload.call_attempt import AdmittedBy, CallAttempt
from nproxy.upstreams.overload.freed_slots import FreedSlots
from nproxy.upstreams.overload.full_replicas import FullReplicas
from nproxy.upstreams.overload.leg_admission import LegAdmission
from nproxy.upstreams.overload.patience import Patience
from nproxy.upstreams.overload.peer_workers import PeerWorkers, What
from nproxy.upstreams.overload.probes import Probes
from nproxy.upstreams.overload.prospects import Prospects
from nproxy.upstreams.overload.release_delay import FreedSlot
from nproxy.upstreams.overload.shared_capacity import SharedCapacity
from nproxy.upstreams.overload.waiting_legs import WaitingLeg, WaitingLegs
from nproxy.upstreams.replicas import Replica
from tests.upstreams.conftest import replicas


class Parts:
    """One account's. elsewhere: whether another replica is usable. told: the news for other workers."""

    def __init__(self, shared: SharedCapacity | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.began_at = self.loop.time()
        self.elsewhere = False
        self.seconds = 10.0
        self.told: list[What] = []
        (self.replica,) = replicas(1)
        self.shared = shared or SharedCapacity()
        self.waiting = WaitingLegs()
        self.calls = AccountCalls(self.shared)
        self.announcements = Announcements(self, self.waiting, self.calls, self.shared, self.loop.time)
        self.full = FullReplicas(self._other_usable)
        self.admission = LegAdmission(self.waiting, self.full, self.calls, self.announcements, self.loop.time)
        self.probes = Probes(self.admission, self.shared, lambda: 0.5, self.loop.time)
        self.slots = FreedSlots(self.admission, self.probes, self.shared)
        self.patience = Patience(self.admission, lambda: self.seconds, self.loop.time)
        parts = (self.admission, self.slots, self.patience, self.announcements)
        self.prospects = Prospects(*parts, other_usable=self._other_usable)

    def _other_usable(self, some: Collection[Replica]) -> bool:
        return self.elsewhere

    @property
    def now(self) -> float:
        return self.loop.time() - self.began_at

    def accept(self, slot: FreedSlot) -> bool:
        """As a WaitingAccount."""
        return self.admission.admit_next("release", slot.replica, slot)

    def nothing_in_flight(self) -> None:
        self.probes.schedule()

    def with_workers(self) -> PeerWorkers:
        """From now on there are other workers."""
        self.announcements.workers = workers = PeerWorkers("w0", lambda what, *_: self.told.append(what))
        return workers

    def calling(self, group: CallGroup | None = None, leg: int = 0, by: AdmittedBy = "") -> CallAttempt:
        """A call is in flight."""
        attempt = CallAttempt(group or CallGroup("m"), leg)
        attempt.admitted_by = by
        self.calls.begin(attempt)
        return attempt

    def wait(self, group: CallGroup | None = None, leg: int = 0) -> WaitingLeg:
        """A leg begins to wait."""
        group = group or CallGroup("m")
        group.queue_stats = group.queue_stats or QueueStats()
        waiter = self.waiting.add(CallAttempt(group, leg), group.queue_stats)
        self.patience.begin(waiter)
        self.announcements.waiting_changed()
        return waiter
