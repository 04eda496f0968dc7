"""A recorded step's arrays, which the step that continues it moves on by one position instead of planning anew.

Until a row begins another span of FIXED_SPAN tokens, nothing changes between two decoding steps but positions: each
row's, its slot's, the end of its last work item, and its draw's; and the blocks that rows begin. Its token is on the
device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.batch import Batch, Draw, Row
from engine.device.draws import DrawPlan
from engine.device.frame import Arrays
from engine.device.graphs import Recorded
from engine.device.worklist import HI, LO, TABLE
from engine.kernels.draw_table import POSITION
from engine.kv_spans import FIXED_SPAN, span_tokens

LINES = "lines"
"""The name of a recorded step's draws, of which it has as many as rows."""


class Continuation:
    """The arrays of a step that has rows only, each of which draws; `image` is the bytes of its frame."""

    def __init__(
        self,
        number: int,
        recorded: Recorded,
        plan: DrawPlan,
        arrays: Arrays,
        newest: Sequence[NDArray[np.intp]],
        block_size: int,
    ) -> None:
        """number: Batch.number of the step. arrays: the step's, of `recorded.frame`.

        newest: by work list and row, the item that the row's newest position is in.
        """
        self.recorded = recorded
        self.plan = plan
        self.image = np.zeros(recorded.frame.size, dtype=np.uint8)
        recorded.frame.write(arrays, self.image)
        there, rows = recorded.frame.arrays(self.image), len(plan.draws)
        self._number = number
        self._size = block_size
        self._span = span_tokens(FIXED_SPAN, block_size)
        self._sources = there["sources"][:rows]
        self._positions = there["positions"][:rows]
        self._slots = there["slots"][:rows]
        self._alike = [self._positions, self._slots, there["row_positions"][:rows], there[LINES][:rows, POSITION.value]]
        self._lists = [
            (there[f"items {number}"], there[f"blocks {number}"], items[:rows]) for number, items in enumerate(newest)
        ]

    def follow(self, batch: Batch) -> bool:
        """Become the batch's step and return True if it continues this one and draws alike."""
        draws, rows = self.plan.draws, batch.rows
        if not batch.continues or batch.number != self._number + 1 or batch.masks:
            return False
        if not all(row.token is None and _alike(row.draw, draw) for row, draw in zip(rows, draws, strict=True)):
            return False
        if not ((self._positions + 1) % self._span).all():
            return False
        self._number = batch.number
        self._sources[:] = np.arange(len(draws))  # each row begins with what its own draw was
        for moving in self._alike:
            moving += 1
        for items, _, newest in self._lists:
            items[newest, HI] += 1
        for number in np.flatnonzero(self._positions % self._size == 0).tolist():
            self._begin_block(number, rows[number])
        return True

    def _begin_block(self, number: int, row: Row) -> None:
        """Write the block that a row's position begins."""
        index = row.position // self._size
        block = row.blocks[index]
        self._slots[number] = block * self._size
        for items, blocks, newest in self._lists:
            item = items[newest[number]]
            blocks[item[TABLE] + index - item[LO] // self._size] = block


def _alike(draw: Draw | None, before: Draw) -> bool:
    """Whether a sequence draws as it did, one position further, by its scores alone."""
    return (
        draw is not None
        and draw.sampling is before.sampling
        and draw.past is None
        and not draw.banned
        and draw.logprobs is None
    )
