"""Calls that a server refuses for lack of capacity: who waits, who calls next, and when (ADR 0049).

How many calls a server takes at once is unknown, and others may use the same capacity. So this is a fair queue with
adaptive concurrency. A leg that waits is admitted

    by a release   when a call that was being answered ends, and so has freed a slot (`FreedSlot`): at once, or as long
                   after it as the server takes to give the slot back (`release_delay.py`);
    as a probe     now and then without such an end, to find out whether there is more capacity (`probe_pace.py`).

A refused attempt goes back to its old place, unless it gave up its turn (`refusal_history.py`). A leg that did not have
to wait calls directly. Freed slots are offered to the other accounts of the upstream too (`shared_capacity.py`), and to
the other workers of the gateway (`peer_workers.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from math import inf
from weakref import WeakSet

from nproxy.choices.events import Room
from nproxy.choices.retry import LONGEST_RETRY_AFTER_SECONDS
from nproxy.upstreams.balancing import Draw
from nproxy.upstreams.call_attempt import AdmittedBy, CallAttempt
from nproxy.upstreams.call_group import CallGroup, QueueStats
from nproxy.upstreams.full_replicas import FullReplicas
from nproxy.upstreams.peer_workers import PeerWorkers, What
from nproxy.upstreams.permits import ROUNDING
from nproxy.upstreams.probe_pace import ProbePace
from nproxy.upstreams.refusal_history import GIVE_UP_AFTER_FINDINGS, RefusalHistory
from nproxy.upstreams.release_delay import LONGEST_DELAY, RELEASE_DELAYS, FreedSlot
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.shared_capacity import OwnLimit, SharedCapacity
from nproxy.upstreams.waiting_legs import WaitingLeg, WaitingLegs

JUST_NOW_SECONDS = 0.5
"""A server may still count a call that ended so long ago; longer than all RELEASE_DELAYS together."""
OVER_SECONDS = 1.0
"""If no leg waits and none was refused for so long, the overload is over."""
STANDS_SECONDS = 0.1
"""A call that stands for so long was probably not refused, as far as another worker needs to know."""
AGAIN_SECONDS = 2.0
"""How soon a leg that is out of patience, but for its request's other legs, is looked at again."""


class OverloadQueue:
    """Admits the legs of one account to a server without capacity. While some wait, new ones wait behind them.

    waiting: the legs that do. peers: the other workers of this gateway, None if there are none.
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
        self.peers: PeerWorkers | None = None
        self._model = model
        self._shared = shared
        self._own_limit = OwnLimit()
        self._draw = draw
        self._clock = clock
        self._patience = patience
        self._full = FullReplicas(other_usable)
        self._other_usable = other_usable
        self._refused_at = -inf
        self._probe_timer: asyncio.TimerHandle | None = None
        self._probe_pause = 0.0  # what the timer was set by, but for chance
        self._pace = ProbePace()
        self._refusals = RefusalHistory()
        self._begun = 0  # calls
        self._standing: set[int] = set()  # numbers of those in flight
        self._stood: set[int] = set()  # the same, when the other workers were last reminded
        self._answered_at = -inf
        self._slots: WeakSet[FreedSlot] = WeakSet()  # that are used, or about to be; each lives as long as its attempts
        self._delayed_slots = 0  # for which a leg will be admitted after a delay

    @property
    def calls(self) -> int:
        """Calls of this account, in flight or about to be."""
        return len(self._standing)

    # ---- the way of one leg

    def begin(self, attempt: CallAttempt) -> None:
        """A call is about to be made."""
        self._shared.calls += 1
        self._begun = attempt.number = self._begun + 1
        self._standing.add(attempt.number)

    async def wait_turn(self, attempt: CallAttempt) -> None:
        """Wait to be admitted, which counts as `begin`. A leg that was refused again gets the place it had."""
        group = attempt.group
        stats = group.queue_stats = group.queue_stats or QueueStats()
        stats.waiting_since = stats.waiting_since or self._clock()
        stats.waiting += 1
        waiter = self.waiting.add(attempt, stats)
        try:
            if len(self.waiting) & (len(self.waiting) - 1) == 0:  # 1, 2, 4, 8 ...
                self._announce_waiting()
            self._start_patience(waiter, self._patience_left(group))
            if self._probe_timer is None or not self._in_flight():
                self._schedule_probe()
            await waiter.future
        except BaseException:
            if waiter in self.waiting:
                self._remove(waiter)
            else:
                self.abandoned(attempt)  # admitted in the very moment of the cancellation
            raise
        finally:
            stats.waiting -= 1
            if waiter.patience is not None:
                waiter.patience.cancel()

    def abandoned(self, attempt: CallAttempt) -> None:
        """A leg that was admitted makes no call after all."""
        self._uncount(attempt)
        if attempt.admitted_by:
            self._hand_on(attempt, attempt.admitted_by)
        self._ensure_probe()

    def refused(self, attempt: CallAttempt, replica: Replica, wait: float | None, *, sure: bool) -> Room:
        """A call was refused; it counts as in flight until `ended`. Returns where there may be capacity for it.

        wait: the seconds of the server's Retry-After. sure: the server says that it lacks capacity. If it does not, a
        single refusal is taken for another fault.
        """
        now = self._clock()
        for slot in self._slots:
            slot.in_flight -= attempt.number <= slot.since
        specific = self._refusals.note_refused(attempt, self._begun) and self.waiting.others_wait(attempt.group)
        attempt.request_specific = specific
        attempt.not_capacity = specific or (self._refusals.in_a_row == 1 and not sure)
        if wait is not None and wait > LONGEST_RETRY_AFTER_SECONDS and not self._full.another_soon(replica, now):
            attempt.room = ""
            return ""
        if not attempt.not_capacity:
            self._note_full(attempt, replica, wait, now)
        else:
            self._full.note_refused(replica, now)
        if attempt.not_capacity and attempt.admitted_by == "probe":
            self._pace.forget_probe()
        attempt.room = room = self._room_for(attempt, now, sure=sure)
        return room

    def ended(self, attempt: CallAttempt, replica: Replica) -> None:
        """A call is over, or a refused one has been dealt with: admit the next one."""
        self._uncount(attempt)
        if attempt.room is None:
            self._note_end(attempt, replica)
        elif attempt.not_capacity:
            exclude = attempt.group if attempt.request_specific else None
            self._hand_on(attempt, attempt.admitted_by or "release", exclude=exclude)
        elif not (self._in_flight() or attempt.room):
            self._admit_next("probe")
        self._ensure_probe()

    # ---- what a refusal says

    def _room_for(self, attempt: CallAttempt, now: float, *, sure: bool) -> Room:
        """Where there may be capacity for a leg that was refused; "" if it is to be told of the refusal.

        It waits if calls of this account are in flight or were answered a short while ago, or if others wait and probe.
        Other clients, of which nothing is known here, may use all of the capacity. It does not wait once its request is
        out of patience.
        """
        group, by = attempt.group, attempt.admitted_by
        if attempt.not_capacity and not by:
            return ""
        if not by and self._other_usable(self._full if sure else group.avoided(attempt.leg)):
            return "elsewhere"
        if group.others_in_flight(attempt.leg) or now - group.served_at < JUST_NOW_SECONDS:
            return "siblings"
        stats = group.queue_stats
        if self._patience_left(group) <= ROUNDING or (stats and stats.specific_findings >= GIVE_UP_AFTER_FINDINGS):
            return ""
        waited_longest = attempt.slot is not None and attempt.slot.delay == LONGEST_DELAY
        # with other workers it waits first: these may know that the server answers, and tell so
        alone = not by and not self.waiting and self.peers is None
        found_out = by == "probe" or waited_longest or self._is_guest(attempt) or alone
        answers = group.served_at > -inf or now - self._last_answer(now) < self._patience()
        return "others" if answers or self._in_flight() > 1 or not found_out else ""

    def _last_answer(self, now: float) -> float:
        """When the server last answered a call that shares this account's capacity, as far as is known."""
        own = self._answered_at if self.peers is None else max(self._answered_at, self.peers.answers_at)
        return own if self._own_limit.believed(now) else max(own, self._shared.answered_at)

    def _is_guest(self, attempt: CallAttempt) -> bool:
        """Whether it was admitted for a slot that another account freed."""
        return attempt.slot is not None and attempt.slot.host is not self

    def _note_full(self, attempt: CallAttempt, replica: Replica, wait: float | None, now: float) -> None:
        """Take a refusal as one for lack of capacity: note it of the replica, and decide who calls next.

        Probes of the timer always respect a Retry-After. Attempts behind a release respect it once several have failed
        in spite of the longest delay.
        """
        slot, guest = attempt.slot, self._is_guest(attempt)
        if not attempt.admitted_by and self._is_over(now):
            self._pace.restart()
            self._full.forget(now)
        self._refused_at = now
        by_turn = slot is not None and not slot.left_by_peer
        self._shared.note_refused(self, replica, now, by_turn=by_turn)
        full = self._full.note_full(replica, now, wait)
        too_early = slot is not None and not slot.host.slot_was_taken(slot, guest=guest)
        waited_longest = slot is not None and slot.delay == LONGEST_DELAY
        nobody_else = self._in_flight() == 1 and not guest and not (self.peers is not None and self.peers.active(now))
        if wait is not None and (nobody_else or (too_early and waited_longest and self._refusals.several)):
            full.no_call_before = full.no_probe_before
        self._pace.note_full(probe=attempt.admitted_by == "probe")
        if attempt.admitted_by == "probe":
            self._cancel_probe()
        elif slot is not None and too_early:
            if guest and slot.first:
                self._own_limit.note_refused(now)
            pause = max(full.no_call_before - now, 0.0)
            tells = (not guest or self._own_limit.disproved) and not self._delayed_by_peer(slot)
            if slot.release_delay.note_refused(slot, now, pause=pause, tells=tells):
                slot.host.schedule_release(slot)
        self._schedule_probe()

    def _is_over(self, now: float) -> bool:
        """Whether the overload is over: nobody waits, and the last refusal is long ago."""
        refused_at = self._refused_at if self._own_limit.believed(now) else self._shared.refused_at
        return not self.waiting and now - refused_at > OVER_SECONDS

    def slot_was_taken(self, slot: FreedSlot, *, guest: bool) -> bool:
        """Whether more calls are in flight, as an attempt is refused, than when the slot was freed."""
        return self.calls - (not guest) > slot.in_flight

    # ---- what the end of a call says

    def _note_end(self, attempt: CallAttempt, replica: Replica) -> None:
        """A call that was not refused is over."""
        if self._refusals.in_a_row:
            self._refusals.note_end()
        now, stats = self._clock(), attempt.group.queue_stats
        if stats is not None:
            stats.waiting_since = now if stats.waiting else None
        if attempt.end == "broken":
            return
        if attempt.end:
            self._answered_at = self._shared.answered_at = now
            if self.peers is not None:
                self.peers.tell_answers(now)
            if attempt.end == "whole":
                attempt.group.served_at = now
        if self._full and self._is_over(now):
            self._full.forget(now)
        if not self._full and not self._shared.waiting:
            return  # as nearly always
        if attempt.end:
            self._note_answer(attempt, now)
        release_delay = self._shared.release_delay(replica)
        slot = FreedSlot(self, replica, release_delay, release_delay.delay, self._begun, self.calls)
        self._slots.add(slot)
        self.schedule_release(slot)
        if self._pace.grows:
            self._admit_next("probe", replica)

    def _note_answer(self, attempt: CallAttempt, now: float) -> None:
        """Learn from an answer: how long answers take, whether there is more capacity, when slots are given back."""
        self._refusals.note_answer(attempt)
        if attempt.admitted_by:
            self._pace.note_answer(now - attempt.began, probe=attempt.admitted_by == "probe")
            if self._probe_timer is not None and self._pace.pause(idle=False) < self._probe_pause:
                self._schedule_probe()
        if attempt.slot is not None:
            if self._is_guest(attempt):
                self._own_limit.note_served()
            if not self._delayed_by_peer(attempt.slot):
                attempt.slot.release_delay.note_served(attempt.slot, now)

    def _delayed_by_peer(self, slot: FreedSlot) -> bool:
        """Whether it was another worker that waited for the slot, for a time that is not known here."""
        return slot.left_by_peer and slot.first

    def schedule_release(self, slot: FreedSlot) -> None:
        """Admit the next leg for a slot, after its delay."""
        if not slot.delay:
            self._release(slot)
            return
        self._delayed_slots += 1
        asyncio.get_running_loop().call_later(RELEASE_DELAYS[slot.delay], self._delay_is_over, slot)

    def _delay_is_over(self, slot: FreedSlot) -> None:
        self._delayed_slots -= 1
        self._release(slot)
        self._ensure_probe()

    def _release(self, slot: FreedSlot) -> None:
        if slot.left_by_peer:
            self._admit_next("release", slot.replica, slot)
        else:
            self._shared.offer(slot)

    # ---- who is admitted

    def accept(self, slot: FreedSlot) -> bool:
        """Admit a leg for a slot that this account or another has freed; returns False if none goes."""
        replica = slot.replica
        if slot.host is not self:
            may = not self._own_limit.believed(self._clock()) and replica.serves(self._model)
            return may and self._admit_next("release", replica, slot)
        if self.peers is not None and self.peers.take(replica.label, self._clock(), requests=self.waiting.requests()):
            return True
        return self._admit_next("release", replica, slot)

    def _hand_on(self, attempt: CallAttempt, by: AdmittedBy, exclude: CallGroup | None = None) -> None:
        """Admit another leg in place of this one. exclude: no leg of this request."""
        if attempt.slot is not None and self._is_guest(attempt):
            self._shared.offer(attempt.slot)
        else:
            self._admit_next(by, None, attempt.slot, exclude)

    def _admit_next(
        self,
        by: AdmittedBy,
        replica: Replica | None = None,
        slot: FreedSlot | None = None,
        exclude: CallGroup | None = None,
    ) -> bool:
        """Admit the next leg, unless the server asked for a pause; returns False if none goes.

        replica: where there is capacity, if that is known. exclude: no leg of this request.
        """
        waiter = self.waiting.next(slot, exclude, self._begun)
        if waiter is None or not self._full.may_be_called(replica, self._clock()):
            return False
        waiter.attempt.slot = slot
        self._admit(waiter, by, replica)
        return True

    def _admit(self, waiter: WaitingLeg, by: AdmittedBy, replica: Replica | None = None) -> None:
        self._remove(waiter)
        self.begin(waiter.attempt)
        self.waiting.took_its_turn(waiter)
        attempt = waiter.attempt
        if attempt.slot is not None:
            attempt.slot.last_group = attempt.group
        attempt.admitted_by, attempt.began = by, self._clock()
        target = self._full.next_to_probe(attempt.began) if replica is None else replica
        attempt.group.full[attempt.leg] = self._full.all_but(target)
        waiter.future.set_result(None)

    def _remove(self, waiter: WaitingLeg) -> None:
        self.waiting.remove(waiter)
        if not self.waiting:
            self._announce_waiting()

    # ---- calls in flight

    def _uncount(self, attempt: CallAttempt) -> None:
        self._standing.discard(attempt.number)
        self._shared.calls -= 1

    def _in_flight(self) -> int:
        """Calls whose end frees a slot for this account, as far as is known."""
        return self.calls if self._own_limit.believed(self._clock()) else self._shared.calls

    def _ensure_probe(self) -> None:
        """If no call is in flight, no end of a call admits the legs that wait: probe soon."""
        self._shared.ensure_probes()
        if self.waiting and not self._in_flight():
            self._schedule_probe()

    def nothing_in_flight(self) -> None:
        """No call of any account is in flight."""
        self._schedule_probe()

    def replicas_changed(self, there: Collection[Replica]) -> None:
        """There are other replicas than before."""
        self._full.keep(there)

    def capacity_may_have_grown(self) -> None:
        """A replica has come, or come back: probe at once, and go on as long as probes are answered."""
        self._pace.hurry()
        self._cancel_probe()
        self._schedule_probe()

    # ---- probes

    def _schedule_probe(self) -> None:
        """Probe after a pause, and no sooner than servers allow."""
        loop = asyncio.get_running_loop()
        pause = self._pace.pause(idle=not (self._in_flight() or self._delayed_slots))
        if not self._own_limit.believed(self._clock()):
            pause *= max(len(self._shared.waiting), 1)  # the other accounts probe, too
        seconds = max(pause * (0.5 + self._draw()), self._full.no_probe_before - self._clock())
        if self._probe_timer is None or self._probe_timer.when() > loop.time() + seconds:
            self._cancel_probe()
            self._probe_timer, self._probe_pause = loop.call_later(seconds, self._probe), pause

    def _cancel_probe(self) -> None:
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        self._probe_timer = None

    def _probe(self) -> None:
        self._probe_timer = None
        would_take_a_delayed_slot = self._delayed_slots and not self._in_flight()
        if would_take_a_delayed_slot or self._clock() < self._full.no_probe_before - ROUNDING:
            self._schedule_probe()
            return
        if (waiter := self.waiting.next_to_probe()) is not None:
            if self._in_flight():
                self._pace.note_probe()
            self._admit(waiter, "probe")
            self._schedule_probe()

    # ---- patience

    def _patience_left(self, group: CallGroup) -> float:
        """Seconds that a request goes on waiting while nothing of it is answered."""
        now = self._clock()
        since = None if group.queue_stats is None else group.queue_stats.waiting_since
        return (since or now) + self._patience() - now

    def _start_patience(self, waiter: WaitingLeg, seconds: float) -> None:
        waiter.patience = asyncio.get_running_loop().call_later(seconds, self._patience_may_be_over, waiter)

    def _patience_may_be_over(self, waiter: WaitingLeg) -> None:
        """A request without an answer does not wait for ever: the first of its legs probes."""
        if waiter not in self.waiting or waiter.future.done():
            return
        group = waiter.attempt.group
        if (left := self._patience_left(group)) > ROUNDING:
            self._start_patience(waiter, left)
        elif waiter is self.waiting.first_of(group) and not group.others_in_flight(waiter.attempt.leg):
            self._admit(waiter, "probe")
        else:
            self._start_patience(waiter, AGAIN_SECONDS)

    # ---- other accounts and workers

    def _announce_waiting(self) -> None:
        """Tell the other accounts, and the other workers, whether legs wait here."""
        self._note_waiting()
        if self.peers is not None:
            self.peers.tell_waiting(self.waiting.requests())

    def peers_go_first(self) -> bool:
        """Whether a new leg waits because legs wait in other workers."""
        return self.peers is not None and self.peers.go_first(self._clock(), calls=self.calls)

    def hear(self, what: What, process: str, replica: Replica | None, requests: int) -> None:
        """Take another worker's news of the same account.

        replica: the one with a slot. requests: how many wait in that worker.
        """
        now = self._clock()
        if self.peers is not None:
            if self.peers.hear(what, process, now, requests) and self.calls:
                asyncio.get_running_loop().call_later(STANDS_SECONDS, self._tell_of_standing_calls, self._begun)
            self._note_waiting()
        if what == "room" and replica is not None and self.waiting:
            delay = self._shared.release_delay(replica)
            slot = FreedSlot(self, replica, delay, delay.delay, self._begun, self.calls, left_by_peer=True)
            self._slots.add(slot)
            self._admit_next("release", replica, slot)

    def remind(self) -> None:
        """Tell the other workers again that legs wait here, or that calls are in flight; forget those that are gone."""
        if self.peers is None:
            return
        now = self._clock()
        if self.waiting:
            self.peers.tell_waiting(self.waiting.requests())
        if self._standing & self._stood or (self.calls and now - self._answered_at < self._patience()):
            self.peers.tell_answers(now)
        self._stood = self._standing.copy()
        self._note_waiting()

    def _tell_of_standing_calls(self, begun: int) -> None:
        """Tell a worker that begins to wait that calls are being answered, if one of the first `begun` still stands."""
        if self.peers is not None and any(number <= begun for number in self._standing):
            self.peers.tell_answers(self._clock(), at_once=True)

    def _note_waiting(self) -> None:
        """Have slots that other accounts free offered to this one while legs wait, here or in another worker."""
        elsewhere = self.peers is not None and self.peers.waits(self._clock())
        self._shared.note_waiting(self, waits=bool(self.waiting) or elsewhere)

    def forgotten(self) -> None:
        """The queue, in which no leg waits, is dropped."""
        self._shared.note_waiting(self, waits=False)
