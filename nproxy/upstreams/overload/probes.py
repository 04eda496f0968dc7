"""When a leg that waits calls without a freed slot, to find out whether there is more capacity.

`probe_pace.py` says how often. Here are the timer, and what puts a probe off: a Retry-After, a slot that is about to be
given back, other accounts that probe too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nproxy.upstreams.balancing import Draw
from nproxy.upstreams.overload.leg_admission import LegAdmission
from nproxy.upstreams.overload.probe_pace import ProbePace
from nproxy.upstreams.overload.shared_capacity import SharedCapacity
from nproxy.upstreams.timers import ROUNDING


class Probes:
    """The probes of one account. pace: how often they are made. delayed_slots: how many slots a leg will be admitted
    for after a delay; a probe does not take them.
    """

    def __init__(self, admission: LegAdmission, shared: SharedCapacity, draw: Draw, clock: Callable[[], float]) -> None:
        self.pace = ProbePace()
        self.delayed_slots = 0
        self._admission = admission
        self._shared = shared
        self._draw = draw
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._pause = 0.0  # what the timer was set by, but for chance

    @property
    def scheduled(self) -> bool:
        """Whether a probe will be made."""
        return self._timer is not None

    def schedule(self) -> None:
        """Probe after a pause, and no sooner than servers allow."""
        loop, now, calls = asyncio.get_running_loop(), self._clock(), self._admission.calls
        pause = self.pace.pause(idle=not (calls.in_flight(now) or self.delayed_slots))
        pause *= calls.accounts_waiting(now)  # the other accounts probe, too
        seconds = max(pause * (0.5 + self._draw()), self._admission.full.no_probe_before - now)
        if self._timer is None or self._timer.when() > loop.time() + seconds:
            self.cancel()
            self._timer, self._pause = loop.call_later(seconds, self._probe), pause

    def schedule_sooner(self) -> None:
        """Probe sooner if the pace has become faster since the probe was scheduled."""
        if self._timer is not None and self.pace.pause(idle=False) < self._pause:
            self.schedule()

    def hurry(self) -> None:
        """Probe at once, and go on as long as probes are answered."""
        self.pace.hurry()
        self.cancel()
        self.schedule()

    def ensure(self) -> None:
        """If no call is in flight, no end of a call admits the legs that wait: probe soon."""
        self._shared.ensure_probes()
        if self._admission.waiting and not self._admission.calls.in_flight(self._clock()):
            self.schedule()

    def cancel(self) -> None:
        """Make no probe until one is scheduled again."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _probe(self) -> None:
        self._timer = None
        now, admission = self._clock(), self._admission
        in_flight = admission.calls.in_flight(now)
        would_take_a_delayed_slot = self.delayed_slots and not in_flight
        if would_take_a_delayed_slot or now < admission.full.no_probe_before - ROUNDING:
            self.schedule()
            return
        if (waiter := admission.waiting.next_to_probe()) is not None:
            if in_flight:
                self.pace.note_probe()
            admission.admit(waiter, "probe")
            self.schedule()
