"""A recorded step's arrays, which the step that continues it moves on by one position instead of planning anew.

Until a row begins another block, nothing changes between two decoding steps but positions: each row's, its slot's, the
end of its last work item, and its draw's. Its token is on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Continuation:
    """The arrays of a step that has rows only, each of which draws, as `image`: the bytes of its frame.

    arrays: the step's, of `recorded.frame`. ends: by name of a list of work items, those that the rows' newest
    positions are in.
    """

    number: int
    """Batch.number of the step."""
    recorded: Recorded
    plan: Plan
    arrays: Arrays
    ends: Mapping[str, NDArray[np.intp]]
    image: NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        frame, rows = self.recorded.frame, len(self.plan.draws)
        self.image = np.zeros(frame.size, dtype=np.uint8)
        frame.write(self.arrays, self.image)
        self.arrays = {name: array[:rows] for name, array in frame.arrays(self.image).items() if name not in self.ends}
        self.arrays |= {name: frame.arrays(self.image)[name] for name in self.ends}

    def follow(self, batch: Batch) -> bool:
        """Become the batch's step and return True if it continues this one and draws alike."""
        draws = self.plan.draws
        if not batch.continues or batch.number != self.number + 1 or batch.masks:
            return False
        if not all(row.token is None and _alike(row.draw, draw) for row, draw in zip(batch.rows, draws, strict=True)):
            return False
        self.number = batch.number
        self.arrays["sources"][:] = np.arange(len(draws))
        for name in ("positions", "slots", "row_positions"):
            self.arrays[name] += 1
        self.arrays[LINES][:, POSITION.value] += 1
        for name, items in self.ends.items():
            self.arrays[name][items, HI] += 1
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
