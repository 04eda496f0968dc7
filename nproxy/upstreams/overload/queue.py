"""Calls that a server refuses for lack of capacity: who waits, who calls next, and when (ADR 0049).

How many calls a server takes at once is unknown, and others may use the same capacity. So this is a fair queue with
adaptive concurrency. A leg that waits is admitted (`leg_admission.py`)

    by a release   when a call that was being answered ends, and so has freed a slot: at once, or as long after it as
                   the server takes to give the slot back (`freed_slots.py`);
    as a probe     now and then without such an end, to find out whether there is more capacity (`probes.py`), and once
                   more when its request has waited long enough (`patience.py`).

A refused attempt goes back to its old place, unless it gave up its turn (`refusal_history.py`) or has no prospect of
capacity (`prospects.py`). A leg that did not have to wait calls directly. Freed slots are offered to the other accounts
of the upstream too (`shared_capacity.py`), and to the other workers of the gateway (`peer_workers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from nproxy.choices.events import Room
from nproxy.choices.retry import LONGEST_RETRY_AFTER_SECONDS
from nproxy.upstreams.balancing import Draw
from nproxy.upstreams.call_group import CallGroup, QueueStats
from nproxy.upstreams.overload.account_calls import AccountCalls
from nproxy.upstreams.overload.announcements import Announcements
from nproxy.upstreams.overload.call_attempt import AdmittedBy, CallAttempt
from nproxy.upstreams.overload.freed_slots import FreedSlots
from nproxy.upstreams.overload.full_replicas import FullReplicas
from nproxy.upstreams.overload.leg_admission import LegAdmission
from nproxy.upstreams.overload.patience import Patience
from nproxy.upstreams.overload.peer_workers import What
from nproxy.upstreams.overload.probes import Probes
from nproxy.upstreams.overload.prospects import Prospects
from nproxy.upstreams.overload.refusal_history import RefusalHistory
from nproxy.upstreams.overload.release_delay import FreedSlot
from nproxy.upstreams.overload.shared_capacity import SharedCapacity
from nproxy.upstreams.overload.waiting_legs import WaitingLegs
from nproxy.upstreams.replicas import Replica

OVER_SECONDS = 1.0
"""If no leg waits and none was refused for so long, the overload is over."""


class OverloadQueue:
    """Takes what happens to the calls of one account at a server that may lack capacity, and has its parts act on it.

    While legs wait, new ones wait behind them. waiting: the legs that do. calls: those in flight. announcements: what
    the other accounts and workers are told.
    """

    def __init__(
        self,
        model: str | None,
        shared: SharedCapacity,
        draw: Draw,
        clock: Callable[[], float],
        other_usable: Callable[[Collection[Replica]], bool],
        patience: Callable[[], float],
    ) -> None:
        """model: what they ask for. shared: with the other accounts. draw: a random number from 0 up to 1. clock: a
        monotonic time. other_usable: whether a healthy replica exists that is not among the given ones. patience: how
        many seconds a request waits while nothing of it is answered; then it probes once more, and is told the result.
        """
        self.waiting = WaitingLegs()
        self.calls = AccountCalls(shared)
        self.announcements = Announcements(self, self.waiting, self.calls, shared, clock)
        self._model = model
        self._shared = shared
        self._clock = clock
        self._full = FullReplicas(other_usable)
        self._refusals = RefusalHistory()
        self._admission = LegAdmission(self.waiting, self._full, self.calls, self.announcements, clock)
        self._probes = Probes(self._admission, shared, draw, clock)
        self._slots = FreedSlots(self._admission, self._probes, shared)
        self._patience = Patience(self._admission, patience, clock)
        self._prospects = Prospects(self._admission, self._slots, self._patience, self.announcements, other_usable)

    # ---- the way of one leg

    async def wait_turn(self, attempt: CallAttempt) -> None:
        """Wait to be admitted; then its call has begun. A leg that was refused again gets the place it had."""
        group = attempt.group
        stats = group.queue_stats = group.queue_stats or QueueStats()
        waiter = self.waiting.add(attempt, stats)
        self._patience.begin(waiter)
        try:
            if len(self.waiting) & (len(self.waiting) - 1) == 0:  # 1, 2, 4, 8 ...
                self.announcements.waiting_changed()
            if not (self._probes.scheduled and self.calls.in_flight(self._clock())):
                self._probes.schedule()
            await waiter.future
        except BaseException:
            if waiter in self.waiting:
                self._admission.remove(waiter)
            else:
                self.abandoned(attempt)  # admitted in the very moment of the cancellation
            raise
        finally:
            self._patience.end(waiter)

    def abandoned(self, attempt: CallAttempt) -> None:
        """A leg that was admitted makes no call after all."""
        self.calls.end(attempt)
        if attempt.admitted_by:
            self._hand_on(attempt, attempt.admitted_by)
        self._probes.ensure()

    def refused(self, attempt: CallAttempt, replica: Replica, wait: float | None, *, sure: bool) -> Room:
        """A call was refused; it counts as in flight until `ended`. Returns where there may be capacity for it.

        wait: the seconds of the server's Retry-After. sure: the server says that it lacks capacity. If it does not, a
        single refusal is taken for another fault.
        """
        now = self._clock()
        self._slots.note_refused(attempt)
        specific = self._refusals.note_refused(attempt, self.calls.begun) and self.waiting.others_wait(attempt.group)
        attempt.request_specific = specific
        attempt.not_capacity = specific or (self._refusals.in_a_row == 1 and not sure)
        if wait is not None and wait > LONGEST_RETRY_AFTER_SECONDS and not self._full.another_soon(replica, now):
            attempt.room = ""
            return ""
        if not attempt.not_capacity:
            self._note_full(attempt, replica, wait, now)
        else:
            self._full.note_refused(replica, now)
            if attempt.admitted_by == "probe":
                self._probes.pace.forget_probe()
        attempt.room = room = self._prospects.of(attempt, now, sure=sure)
        return room

    def ended(self, attempt: CallAttempt, replica: Replica) -> None:
        """A call is over, or a refused one has been dealt with: admit the next one."""
        self.calls.end(attempt)
        if attempt.room is None:
            self._note_end(attempt, replica)
        elif attempt.not_capacity:
            exclude = attempt.group if attempt.request_specific else None
            self._hand_on(attempt, attempt.admitted_by or "release", exclude=exclude)
        elif not (self.calls.in_flight(self._clock()) or attempt.room):
            self._admission.admit_next("probe")
        if attempt.room == "":
            self._patience.told(attempt.group)
        self._probes.ensure()

    def _hand_on(self, attempt: CallAttempt, by: AdmittedBy, exclude: CallGroup | None = None) -> None:
        """Admit another leg in place of this one. exclude: no leg of this request."""
        if attempt.slot is not None and self._slots.is_guest(attempt):
            self._shared.offer(attempt.slot)
        else:
            self._admission.admit_next(by, None, attempt.slot, exclude)

    # ---- what a refusal, and the end of a call, say about the server

    def _note_full(self, attempt: CallAttempt, replica: Replica, wait: float | None, now: float) -> None:
        """Take a refusal as one for lack of capacity: note it of the replica, and decide who calls next.

        Probes of the timer always respect a Retry-After. Attempts behind a release respect it once several have failed
        in spite of the longest delay.
        """
        slot, by_probe = attempt.slot, attempt.admitted_by == "probe"
        if not attempt.admitted_by and self._is_over(now):
            self._probes.pace.restart()
            self._full.forget(now)
        self.calls.refused_at = now
        self._shared.note_refused(self, replica, now, by_turn=slot is not None and not slot.left_by_peer)
        full = self._full.note_full(replica, now, wait)
        too_early = self._slots.came_too_early(attempt)
        nobody_else = self._nobody_else(attempt, now)
        in_vain = too_early and attempt.waited_longest and self._refusals.several
        if wait is not None and (nobody_else or in_vain):
            full.no_call_before = full.no_probe_before
        self._probes.pace.note_full(probe=by_probe)
        if by_probe:
            self._probes.cancel()
        elif slot is not None and too_early:
            self._slots.note_too_early(attempt, slot, now, pause=max(full.no_call_before - now, 0.0))
        self._probes.schedule()

    def _note_end(self, attempt: CallAttempt, replica: Replica) -> None:
        """A call that was not refused is over."""
        if self._refusals.in_a_row:
            self._refusals.note_end()
        now, stats = self._clock(), attempt.group.queue_stats
        if stats is not None:
            self._patience.renew(stats, now)
        if attempt.end == "broken":
            return
        if attempt.end:
            self.calls.answered_at = self._shared.answered_at = now
            if self.announcements.workers is not None:
                self.announcements.workers.tell_answers(now)
            if attempt.end == "whole":
                attempt.group.served_at = now
        if self._full and self._is_over(now):
            self._full.forget(now)
        if not self._full and not self._shared.waiting:
            return  # as nearly always
        if attempt.end:
            self._note_answer(attempt, now)
        self._slots.schedule(self._slots.add(replica))
        if self._probes.pace.grows:
            self._admission.admit_next("probe", replica)

    def _note_answer(self, attempt: CallAttempt, now: float) -> None:
        """Learn from an answer: how long answers take, whether there is more capacity, when slots are given back."""
        self._refusals.note_answer(attempt)
        if attempt.admitted_by:
            self._probes.pace.note_answer(now - attempt.began, probe=attempt.admitted_by == "probe")
            self._probes.schedule_sooner()
        self._slots.note_answered(attempt, now)

    def _nobody_else(self, attempt: CallAttempt, now: float) -> bool:
        """Whether this attempt alone uses the capacity, as far as is known."""
        if self.calls.in_flight(now) > 1 or self._slots.is_guest(attempt):
            return False
        return self.announcements.workers is None or not self.announcements.workers.active(now)

    def _is_over(self, now: float) -> bool:
        """Whether the overload is over: nobody waits, and the last refusal is long ago."""
        return not self.waiting and now - self.calls.last_refusal(now) > OVER_SECONDS

    # ---- what other accounts, other workers and the gate say

    def accept(self, slot: FreedSlot) -> bool:
        """Admit a leg for a slot that this account or another has freed; returns False if none goes."""
        replica, now, workers = slot.replica, self._clock(), self.announcements.workers
        if slot.host is not self._slots:
            may = not self.calls.own_limit.believed(now) and replica.serves(self._model)
            return may and self._admission.admit_next("release", replica, slot)
        if workers is not None and workers.give_away(replica.label, now, requests=self.waiting.requests()):
            return True
        return self._admission.admit_next("release", replica, slot)

    def hear(self, what: What, process: str, replica: Replica | None, requests: int) -> None:
        """Take another worker's news of the same account.

        replica: the one with a slot. requests: how many wait in that worker.
        """
        self.announcements.hear(what, process, requests)
        if what == "room" and replica is not None and self.waiting:
            self._admission.admit_next("release", replica, self._slots.add(replica, left_by_peer=True))

    def remind(self) -> None:
        """Tell the other workers again how it stands here."""
        self.announcements.remind(answered_within=self._patience.seconds())

    def nothing_in_flight(self) -> None:
        """No call of any account is in flight."""
        self._probes.schedule()

    def capacity_may_have_grown(self) -> None:
        """A replica has come, or come back."""
        self._probes.hurry()

    def replicas_changed(self, there: Collection[Replica]) -> None:
        """There are other replicas than before."""
        self._full.keep(there)

    def forgotten(self) -> None:
        """The queue, in which no leg waits, is dropped."""
        self._shared.note_waiting(self, waits=False)
