"""A recorded step's arrays, which the step that continues it moves on by one position instead of planning anew.

Until a row begins another block, nothing changes between two decoding steps but positions: each row's, its slot's, the
end of its last work item, and its draw's. Its token is on the device.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from engine.attention.worklist import HI
from engine.batch import Batch, Draw
from engine.device.draws import Plan
from engine.device.frame import Arrays
from engine.device.graphs import Recorded
from engine.kernels.draw_table import POSITION

LINES = "lines"
"""The name of a recorded step's draws, of which it has as many as rows."""


class Continuation:
    """The arrays of a step that has rows only, each of which draws; `image` is the bytes of its frame."""

    def __init__(
        self, number: int, recorded: Recorded, plan: Plan, arrays: Arrays, ends: Mapping[str, NDArray[np.intp]]
    ) -> None:
        """number: Batch.number of the step. arrays: the step's, of `recorded.frame`.

        ends: by name of a list of work items, those that the rows' newest positions are in.
        """
        self.recorded = recorded
        self.plan = plan
        self.image = np.zeros(recorded.frame.size, dtype=np.uint8)
        recorded.frame.write(arrays, self.image)
        there, rows = recorded.frame.arrays(self.image), len(plan.draws)
        self._number = number
        self._sources = there["sources"][:rows]
        self._positions = [there[name][:rows] for name in ("positions", "slots", "row_positions")]
        self._positions.append(there[LINES][:rows, POSITION.value])
        self._ends = [(there[name][:, HI], items) for name, items in ends.items()]

    def follow(self, batch: Batch) -> bool:
        """Become the batch's step and return True if it continues this one and draws alike."""
        draws = self.plan.draws
        if not batch.continues or batch.number != self._number + 1 or batch.masks:
            return False
        if not all(row.token is None and _alike(row.draw, draw) for row, draw in zip(batch.rows, draws, strict=True)):
            return False
        self._number = batch.number
        self._sources[:] = np.arange(len(draws))  # each row begins with what its own draw was
        for positions in self._positions:
            positions += 1
        for ends, items in self._ends:
            ends[items] += 1
        return True


def _alike(draw: Draw | None, before: Draw) -> bool:
    """Whether a sequence draws as it did, one position further, by its scores alone."""
    return (
        draw is not None
        and draw.sampling is before.sampling
        and draw.past is None
        and not draw.banned
        and draw.logprobs is None
    )
