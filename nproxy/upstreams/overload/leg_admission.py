"""Admits the legs of one account that wait for capacity: which one is next, whether it may go, and where it calls.

When that happens, others say: `freed_slots.py` at the end of a call, `probes.py` without one, `patience.py` at last.
"""

from __future__ import annotations

from collections.abc import Callable

from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.overload.account_calls import AccountCalls
from nproxy.upstreams.overload.announcements import Announcements
from nproxy.upstreams.overload.call_attempt import AdmittedBy
from nproxy.upstreams.overload.full_replicas import FullReplicas
from nproxy.upstreams.overload.release_delay import FreedSlot
from nproxy.upstreams.overload.waiting_legs import WaitingLeg, WaitingLegs
from nproxy.upstreams.replicas import Replica


class LegAdmission:
    """waiting: the legs that do. full: the replicas that they avoid. calls: of the account; each that is admitted
    becomes one of them.
    """

    def __init__(
        self,
        waiting: WaitingLegs,
        full: FullReplicas,
        calls: AccountCalls,
        announcements: Announcements,
        clock: Callable[[], float],
    ) -> None:
        self.waiting = waiting
        self.full = full
        self.calls = calls
        self._announcements = announcements
        self._clock = clock

    def admit_next(
        self,
        by: AdmittedBy,
        replica: Replica | None = None,
        slot: FreedSlot | None = None,
        exclude: CallGroup | None = None,
    ) -> bool:
        """Admit the next leg, unless the server asked for a pause; returns False if none goes.

        replica: where there is capacity, if that is known. exclude: no leg of this request.
        """
        waiter = self.waiting.next(slot, exclude, self.calls.begun)
        if waiter is None or not self.full.may_be_called(replica, self._clock()):
            return False
        waiter.attempt.slot = slot
        self.admit(waiter, by, replica)
        return True

    def admit(self, waiter: WaitingLeg, by: AdmittedBy, replica: Replica | None = None) -> None:
        """Admit this leg. It avoids all full replicas but this one, or the one that is to be probed."""
        self.remove(waiter)
        self.calls.begin(waiter.attempt)
        self.waiting.took_its_turn(waiter)
        attempt = waiter.attempt
        if attempt.slot is not None:
            attempt.slot.last_group = attempt.group
        attempt.admitted_by, attempt.began = by, self._clock()
        target = self.full.next_to_probe(attempt.began) if replica is None else replica
        attempt.group.full[attempt.leg] = self.full.all_but(target)
        waiter.future.set_result(None)

    def remove(self, waiter: WaitingLeg) -> None:
        """A leg no longer waits: it is admitted, or has left."""
        self.waiting.remove(waiter)
        if not self.waiting:
            self._announcements.waiting_changed()
