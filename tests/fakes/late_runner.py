"""A runner without a model that overlaps: steps run in order, but later than they are submitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.batch import Batch, StepOutput
from engine.config import EngineConfig
from engine.core import Pending
from engine.messages import Ready
from tests.fakes.runner import HashRunner, ready


class LateRunner(HashRunner):
    """Batches wait here until a result is requested, unless they run at once when they are submitted.

    The latter may happen, as a device may be faster than its host: `early` says it of a batch, by its number from 0. A
    row without a token gets the token that the previous batch drew for it; only this runner knows it.

    given: the batches as they were submitted. calls: ("submit" or "result", number), in order. refusing: numbers of
    batches that are refused. failing_late: numbers of batches that fail when they run; what they write and draw is
    nonsense. between: called at the beginning of `submit` and `result`, after the scheduler has issued the batch or
    while it waits for it.
    """

    overlaps = True

    def __init__(self, about: Ready, early: Callable[[int], bool] = lambda _: False) -> None:
        super().__init__(about)
        self.given: list[Batch] = []
        self.calls: list[tuple[str, int]] = []
        self.refusing: set[int] = set()
        self.failing_late: set[int] = set()
        self.between: Callable[[], None] = lambda: None
        self._early = early
        self._waiting: list[tuple[int, Batch]] = []
        self._drawn: dict[int, int] = {}  # by sequence, in the batch that ran last
        self._outputs: dict[int, StepOutput | None] = {}  # None for a batch that failed

    def submit(self, batch: Batch) -> Pending:  # type: ignore[override]
        """Take a batch; at most two may be unfinished."""
        number = len(self.given)
        self.given.append(batch)
        self.calls.append(("submit", number))
        self.between()
        if number in self.refusing:
            raise MemoryError("no memory left to submit with")
        self._waiting.append((number, batch))
        assert len(self._waiting) + len(self._outputs) <= 2, "more than two batches under way"
        if self._early(number):
            self._run(number)
        return _Late(self, number)

    def result(self, number: int) -> StepOutput:
        """The result of the oldest unfinished batch."""
        self.calls.append(("result", number))
        self.between()
        self._run(number)
        assert min(self._outputs) == number, "a result out of turn"
        if (output := self._outputs.pop(number)) is None:
            raise MemoryError("no memory left on the device")
        return output

    def _run(self, last: int) -> None:
        while self._waiting and self._waiting[0][0] <= last:
            number, batch = self._waiting.pop(0)
            rows = [replace(row, token=self._drawn[row.sequence]) if row.token is None else row for row in batch.rows]
            output = super().submit(replace(batch, rows=tuple(rows)))
            self._drawn = dict(output.tokens)
            self._outputs[number] = output
            if number in self.failing_late:
                self._outputs[number] = None
                self._drawn = dict.fromkeys(self._drawn, 0)
                self._spoil(batch)

    def _spoil(self, batch: Batch) -> None:
        written = [(chunk.blocks, chunk.start + i) for chunk in batch.chunks for i in range(len(chunk.tokens))]
        for table, position in [*written, *((row.blocks, row.position) for row in batch.rows)]:
            self._slots[self._slot(table, position)] = -1


@dataclass(frozen=True)
class _Late:
    runner: LateRunner
    number: int

    def result(self) -> StepOutput:
        return self.runner.result(self.number)


def load(config: EngineConfig) -> LateRunner:
    """A loader for the core process."""
    return LateRunner(ready(block_size=config.block_size))
