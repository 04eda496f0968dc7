"""Where there may be capacity for a leg that was refused: whether it goes elsewhere, waits, or is told of the refusal.

It waits if calls of this account are in flight or were answered a short while ago, or if others wait and probe. Other
clients, of which nothing is known here, may use all of the capacity. It does not wait once its request is out of
patience. Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf

from nproxy.choices.events import Room
from nproxy.upstreams.overload.announcements import Announcements
from nproxy.upstreams.overload.call_attempt import CallAttempt
from nproxy.upstreams.overload.freed_slots import FreedSlots
from nproxy.upstreams.overload.leg_admission import LegAdmission
from nproxy.upstreams.overload.patience import Patience
from nproxy.upstreams.overload.refusal_history import GIVE_UP_AFTER_FINDINGS
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.timers import ROUNDING

JUST_NOW_SECONDS = 0.5
"""A server may still count a call that ended so long ago; longer than all RELEASE_DELAYS together."""


class Prospects:
    """Those of one account. other_usable: whether a healthy replica exists that is not among the given ones."""

    __slots__ = ("_admission", "_announcements", "_other_usable", "_patience", "_slots")

    def __init__(
        self,
        admission: LegAdmission,
        slots: FreedSlots,
        patience: Patience,
        announcements: Announcements,
        other_usable: Callable[[Collection[Replica]], bool],
    ) -> None:
        self._admission = admission
        self._slots = slots
        self._patience = patience
        self._announcements = announcements
        self._other_usable = other_usable

    def of(self, attempt: CallAttempt, now: float, *, sure: bool) -> Room:
        """Of a refused attempt; "" if its leg is to be told. sure: the server says that it lacks capacity."""
        group, by = attempt.group, attempt.admitted_by
        if attempt.not_capacity and not by:
            return ""
        if not by and self._other_usable(self._admission.full if sure else group.avoided(attempt.leg)):
            return "elsewhere"
        if group.others_in_flight(attempt.leg) or now - group.served_at < JUST_NOW_SECONDS:
            return "siblings"
        stats, seconds_left = group.queue_stats, self._patience.seconds_left(group)
        if seconds_left <= ROUNDING or (stats and stats.specific_findings >= GIVE_UP_AFTER_FINDINGS):
            return ""
        answers = group.served_at > -inf or now - self._last_answer(now) < self._patience.seconds()
        others_in_flight = self._admission.calls.in_flight(now) > 1
        return "others" if answers or others_in_flight or not self._found_out(attempt) else ""

    def _found_out(self, attempt: CallAttempt) -> bool:
        """Whether this refusal shows that a leg waits in vain, unless calls are being answered."""
        # with other workers it waits first: these may know that the server answers, and tell so
        workers = self._announcements.workers
        alone = not attempt.admitted_by and not self._admission.waiting and workers is None
        by_probe = attempt.admitted_by == "probe"
        return by_probe or attempt.waited_longest or self._slots.is_guest(attempt) or alone

    def _last_answer(self, now: float) -> float:
        """When the server last answered a call that shares this account's capacity, as far as is known."""
        here, workers = self._admission.calls.last_answer(now), self._announcements.workers
        return here if workers is None else max(here, workers.answers_at)
