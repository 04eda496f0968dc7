"""The legs of one request: their states, who waits, who is called. The only place where a leg's state changes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from nproxy.choices.leg import Leg
from nproxy.choices.seeds import seeded
from nproxy.choices.states import FINAL, HOLDS_A_CALL, IDLE, TRANSITIONS, LegState, Signal


@dataclass(slots=True)
class LegProgress:
    """A leg and how far it is.

    attempt: the number of its call, counted from 0. retries: those attempts that the budget paid for. stale: it has had
    its free attempt. waited: seconds for a replica that may be asked. alone: its call has, or had, no other beside it.
    resumed: its call goes on with what an earlier one has brought. waits: its next call is to wait for room.
    crowded: it has waited for that.
    """

    leg: Leg
    state: LegState = LegState.WAITING
    attempt: int = 0
    retries: int = 0
    stale: bool = False
    waited: float = 0.0
    alone: bool = False
    resumed: bool = False
    waits: bool = False
    crowded: bool = False


class Roster:
    """All legs of a request, by number. called: those that hold a call. unsettled: how many are in no final state.

    queue: numbers of those that wait for their turn, a heap: the lowest is called first.
    changed: a leg has moved, or waits now; who decides by that takes it back.

    seed: the client's. draw: gives random seeds, None where the upstream takes none. held: numbers of legs that wait
    until they are released.
    """

    def __init__(
        self,
        legs: Iterable[Leg],
        *,
        seed: int | None,
        draw: Callable[[], int] | None,
        held: frozenset[int] = frozenset(),
    ) -> None:
        self.called: dict[int, LegProgress] = {}
        self.queue: list[int] = []
        self.unsettled = 0
        self.changed = True
        self._seed = seed
        self._draw = draw
        self._runs: dict[int, LegProgress] = {}
        self._enlist(legs, held)

    def __iter__(self) -> Iterator[LegProgress]:
        return iter(self._runs.values())

    def __len__(self) -> int:
        return len(self._runs)

    def find(self, number: int) -> LegProgress:
        """The leg of this number."""
        return self._runs[number]

    def callers(self) -> list[LegProgress]:
        """The legs that hold a call, by number."""
        return [self.called[number] for number in sorted(self.called)]

    def move(self, run: LegProgress, signal: Signal) -> None:
        """Let a leg change its state."""
        state = run.state = TRANSITIONS[run.state, signal]
        self.changed = True
        if state in HOLDS_A_CALL:
            self.called[run.leg.number] = run
            return
        self.called.pop(run.leg.number, None)
        if state in FINAL:
            self.unsettled -= 1

    def resume(self, run: LegProgress) -> None:
        """End a leg's pause: it waits for its turn again."""
        self.move(run, Signal.RESUME)
        self._call_in_turn(run.leg.number)

    def again(self, run: LegProgress, signal: Signal = Signal.PAUSE) -> None:
        """Let a leg be called once more, as soon as it is its turn."""
        run.attempt += 1
        self.move(run, signal)
        self.resume(run)

    def pause(self, run: LegProgress, signal: Signal = Signal.PAUSE) -> None:
        """Let a leg be called once more when somebody ends its pause."""
        run.attempt += 1
        self.move(run, signal)

    def split(self, run: LegProgress, legs: Sequence[Leg]) -> list[LegProgress]:
        """End a leg that was cut, and have others, which pause, bring what it did not."""
        self.move(run, Signal.END)
        parts = [self._runs[number] for number in sorted(self.add(legs, held=True))]
        for part in parts:
            part.attempt, part.retries, part.resumed = run.attempt, run.retries, True
            self.pause(part)
        return parts

    def release(self, numbers: Iterable[int]) -> None:
        """Let legs that were held wait for their turn."""
        for number in numbers:
            if self._runs[number].state is LegState.WAITING:
                self._call_in_turn(number)

    def next_waiting(self, parallel: int | None) -> LegProgress | None:
        """The next leg to call, None where none waits or `parallel` calls are open; the caller opens it."""
        if not self.queue or (parallel is not None and len(self.called) >= parallel):
            return None
        return self._runs[heapq.heappop(self.queue)]

    def add(self, legs: Sequence[Leg], *, held: bool = False) -> set[int]:
        """Number, seed and enlist further legs; gives their numbers. held: as those of the roster's."""
        first = len(self._runs)
        numbered = [leg._replace(number=first + place, seed=None) for place, leg in enumerate(legs)]
        if self._draw is not None:
            taken = {run.leg.seed for run in self if run.leg.seed is not None}
            numbered = seeded(numbered, self._seed, self._draw, taken)
        numbers = {leg.number for leg in numbered}
        self._enlist(numbered, frozenset(numbers) if held else frozenset())
        return numbers

    def drop_idle(self, *, keep: Callable[[LegProgress], bool]) -> None:
        """Cancel the legs that wait or pause, but for those to keep."""
        for run in self:
            if run.state in IDLE and not keep(run):
                self.move(run, Signal.CANCEL)
        self.queue = sorted(number for number in self.queue if self._runs[number].state is LegState.WAITING)

    def _enlist(self, legs: Iterable[Leg], held: frozenset[int] = frozenset()) -> None:
        for leg in legs:
            self._runs[leg.number] = LegProgress(leg)
            self.unsettled += 1
            if leg.number not in held:
                self._call_in_turn(leg.number)

    def _call_in_turn(self, number: int) -> None:
        heapq.heappush(self.queue, number)
        self.changed = True
