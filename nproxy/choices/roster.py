"""The legs of one request: their states, which wait, which are called. A leg's state changes nowhere else."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from nproxy.choices.leg import Leg
from nproxy.choices.states import FINAL, HOLDS_A_CALL, IDLE, TRANSITIONS, LegState, Signal


@dataclass(slots=True)
class LegRun:
    """A leg and its state."""

    leg: Leg
    state: LegState = LegState.WAITING
    attempt: int = 0
    """The number of its call, counted from 0."""
    retries: int = 0
    """Those attempts that the retry budget paid for."""
    stale: bool = False
    """It has had its free attempt after a stale connection."""
    waited: float = 0.0
    """Seconds that it has waited for a replica that may be called."""
    alone: bool = False
    """Its call has, or had, no other call beside it."""
    resumed: bool = False
    """Its call continues what an earlier one has brought."""
    waits: bool = False
    """Its next call waits for capacity."""
    crowded: bool = False
    """It has waited for capacity."""


class Roster:
    """All legs of a request.

    runs: all of them, by number. called: those that hold a call. unsettled: how many are in no final state. queue:
    numbers of the legs that wait for their turn, a heap: the lowest is called first. changed: a leg has changed its
    state or joined the queue; reset by the conduct when it has decided.

    seeds: gives further legs their seeds, beside those that are taken. held: numbers of legs that wait until they are
    released.
    """

    def __init__(
        self,
        legs: Sequence[Leg],
        seeds: Callable[[Sequence[Leg], set[int]], Sequence[Leg]],
        held: Collection[int] = (),
    ) -> None:
        self.called: dict[int, LegRun] = {}
        self.queue: list[int] = []
        self.unsettled = 0
        self._seeds = seeds
        self.runs: dict[int, LegRun] = {}
        self._enlist(legs, held)

    def callers(self) -> list[LegRun]:
        """Return the legs that hold a call, by number."""
        return [self.called[number] for number in sorted(self.called)]

    def move(self, run: LegRun, signal: Signal) -> None:
        """Change a leg's state by a signal. Raises KeyError if the state does not allow the signal."""
        state = run.state = TRANSITIONS[run.state, signal]
        self.changed = True
        if state in HOLDS_A_CALL:
            self.called[run.leg.number] = run
            return
        self.called.pop(run.leg.number, None)
        if state in FINAL:
            self.unsettled -= 1

    def resume(self, run: LegRun) -> None:
        """End a leg's pause. It waits for its turn again."""
        self.move(run, Signal.RESUME)
        self._call_in_turn(run.leg.number)

    def again(self, run: LegRun, signal: Signal = Signal.PAUSE) -> None:
        """Have a leg called once more, as soon as it is its turn."""
        run.attempt += 1
        self.move(run, signal)
        self.resume(run)

    def pause(self, run: LegRun, signal: Signal = Signal.PAUSE) -> None:
        """Have a leg called once more after its pause, which `resume` ends."""
        run.attempt += 1
        self.move(run, signal)

    def split(self, run: LegRun, legs: Sequence[Leg]) -> list[LegRun]:
        """End a leg that was cut, and have others bring what it did not. They pause first."""
        self.move(run, Signal.END)
        parts = [self.runs[number] for number in sorted(self.add(legs, held=True))]
        for part in parts:
            part.attempt, part.retries, part.resumed = run.attempt, run.retries, True
            self.pause(part)
        return parts

    def release(self, numbers: Iterable[int]) -> None:
        """Let legs that were held wait for their turn."""
        for number in numbers:
            if self.runs[number].state is LegState.WAITING:
                self._call_in_turn(number)

    def next_waiting(self, parallel: int | None) -> LegRun | None:
        """Return the next leg of the queue, None if `parallel` calls are open. The caller opens it."""
        if parallel is not None and len(self.called) >= parallel:
            return None
        return self.runs[heapq.heappop(self.queue)]

    def add(self, legs: Sequence[Leg], *, held: bool = False) -> set[int]:
        """Number, seed and enlist further legs; return their numbers. held: they wait until they are released."""
        first = len(self.runs)
        numbered = [replace(leg, number=first + place, seed=None) for place, leg in enumerate(legs)]
        taken = {run.leg.seed for run in self.runs.values() if run.leg.seed is not None}
        numbers = {leg.number for leg in numbered}
        self._enlist(self._seeds(numbered, taken), numbers if held else ())
        return numbers

    def drop_idle(self, *, keep: Callable[[LegRun], bool]) -> None:
        """Cancel the legs that wait or pause, except those to keep."""
        for run in self.runs.values():
            if run.state in IDLE and not keep(run):
                self.move(run, Signal.CANCEL)
        self.queue = sorted(number for number in self.queue if self.runs[number].state is LegState.WAITING)

    def _enlist(self, legs: Sequence[Leg], held: Collection[int]) -> None:
        for leg in legs:
            number = leg.number
            self.runs[number] = LegRun(leg)
            if number not in held:
                heapq.heappush(self.queue, number)
        self.unsettled += len(legs)
        self.changed = True

    def _call_in_turn(self, number: int) -> None:
        heapq.heappush(self.queue, number)
        self.changed = True
