"""What a part works with: a clock, the cases, the time that is left, and a receiver of its results."""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from bench.gpu.cases import Plan
from bench.gpu.clocks import Clock
from bench.gpu.table import Result, failure
from engine.backends import round_once


@dataclass(slots=True)
class Run:
    """One part's run. `ends`: on time.monotonic()'s clock; no measure begins after it. emit: receives each result."""

    clock: Clock
    plan: Plan
    ends: float
    emit: Callable[[Result], None]
    _told: set[str] = field(default_factory=set)

    @staticmethod
    def prepare() -> None:
        """Set up torch in this process as every part needs it on a GPU."""
        round_once()
        torch.manual_seed(0)
        torch.set_grad_enabled(False)

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.ends - time.monotonic()

    def rounds(self, numbers: Iterable[int]) -> Iterator[int]:
        """Yield the numbers of rounds; fewer if there is no time for all, but one."""
        longest = 0.0
        for number in numbers:
            before = self.left
            if longest and before < 1.5 * longest:
                return
            yield number
            longest = max(longest, before - self.left)

    def attempt(self, keys: Sequence[str], measure: Callable[[], Iterable[Result]]) -> None:
        """Emit the results of `measure`; emit any error as the result of those `keys` that it has not delivered."""
        began = time.monotonic()
        note = ""
        if self.left <= 0:
            note = "no time was left"
        else:
            try:
                for result in measure():
                    self.tell(result)
            except Exception as error:
                traceback.print_exc(file=sys.stderr)
                note = failure(error, 160)
                if self.clock.device.type == "cuda":
                    with suppress(RuntimeError):  # the device may be in an error state
                        torch.cuda.empty_cache()
        for key in keys:
            if key not in self._told:
                self.tell(Result(key, None, note or "nothing was told"))
        print(f"{', '.join(keys)}: {time.monotonic() - began:.1f} s {note}", file=sys.stderr, flush=True)

    def tell(self, result: Result) -> None:
        """Emit one result; one whose value or goal is not finite has neither."""
        self._told.add(result.key)
        for name, figure in (("value", result.value), ("goal", result.goal)):
            if figure is not None and not math.isfinite(figure):
                result = Result(result.key, None, f"the {name} is {figure}", detail=result.detail)
        self.emit(result)
