"""The slots that calls of one account free as they end: when each is offered, and what the attempts for it teach.

A slot is offered as long after the end of the call as the server takes to give it back (`release_delay.py`), to all
accounts of the upstream in turn (`shared_capacity.py`).
"""

from __future__ import annotations

import asyncio
from weakref import WeakSet

from nproxy.upstreams.overload.call_attempt import CallAttempt
from nproxy.upstreams.overload.leg_admission import LegAdmission
from nproxy.upstreams.overload.probes import Probes
from nproxy.upstreams.overload.release_delay import RELEASE_DELAYS, FreedSlot
from nproxy.upstreams.overload.shared_capacity import SharedCapacity
from nproxy.upstreams.replicas import Replica


class FreedSlots:
    """The slots of one account. An attempt of it for a slot that another account freed is a guest there."""

    def __init__(self, admission: LegAdmission, probes: Probes, shared: SharedCapacity) -> None:
        self._admission = admission
        self._calls = admission.calls
        self._probes = probes
        self._shared = shared
        self._used: WeakSet[FreedSlot] = WeakSet()  # or about to be; each lives as long as its attempts

    # ---- as the host of its slots

    def add(self, replica: Replica, *, left_by_peer: bool = False) -> FreedSlot:
        """A call of this account is over. left_by_peer: it was another worker's."""
        delay, calls = self._shared.release_delay(replica), self._calls
        slot = FreedSlot(self, replica, delay, delay.delay, calls.begun, len(calls.standing), left_by_peer=left_by_peer)
        self._used.add(slot)
        return slot

    def schedule(self, slot: FreedSlot) -> None:
        """Have the next leg admitted for a slot, after its delay."""
        if not slot.delay:
            self._offer(slot)
            return
        self._probes.delayed_slots += 1
        asyncio.get_running_loop().call_later(RELEASE_DELAYS[slot.delay], self._delay_is_over, slot)

    def _delay_is_over(self, slot: FreedSlot) -> None:
        self._probes.delayed_slots -= 1
        self._offer(slot)
        self._probes.ensure()

    def _offer(self, slot: FreedSlot) -> None:
        if slot.left_by_peer:
            self._admission.admit_next("release", slot.replica, slot)
        else:
            self._shared.offer(slot)

    def was_taken(self, slot: FreedSlot, *, guest: bool) -> bool:
        """Whether more calls are in flight, as an attempt is refused, than when the slot was freed."""
        return len(self._calls.standing) - (not guest) > slot.in_flight

    def note_refused(self, attempt: CallAttempt) -> None:
        """A call was refused. If it was in flight when a slot was freed, one less of those is being answered."""
        for slot in self._used:
            slot.in_flight -= attempt.number <= slot.since

    # ---- attempts of this account, for its own slots or another's

    def is_guest(self, attempt: CallAttempt) -> bool:
        """Whether it was admitted for a slot that another account freed."""
        return attempt.slot is not None and attempt.slot.host is not self

    def came_too_early(self, attempt: CallAttempt) -> bool:
        """Whether an attempt that is refused was for a slot that nobody else had taken: it is yet to be given back."""
        slot = attempt.slot
        return slot is not None and not slot.host.was_taken(slot, guest=self.is_guest(attempt))

    def note_too_early(self, attempt: CallAttempt, slot: FreedSlot, now: float, *, pause: float) -> None:
        """Learn from such a refusal, and make another attempt later. pause: seconds for which no calls are wanted."""
        guest, own_limit = self.is_guest(attempt), self._calls.own_limit
        if guest and slot.first:
            own_limit.note_refused(now)
        tells = (not guest or own_limit.disproved) and not _delayed_by_peer(slot)
        if slot.release_delay.note_refused(slot, now, pause=pause, tells=tells):
            slot.host.schedule(slot)

    def note_answered(self, attempt: CallAttempt, now: float) -> None:
        """Learn from an attempt that was answered."""
        slot = attempt.slot
        if slot is None:
            return
        if self.is_guest(attempt):
            self._calls.own_limit.note_served()
        if not _delayed_by_peer(slot):
            slot.release_delay.note_served(slot, now)


def _delayed_by_peer(slot: FreedSlot) -> bool:
    """Whether it was another worker that waited for the slot, for a time that is not known here."""
    return slot.left_by_peer and slot.first
