"""A step as passes through the model: one in all, or, in deterministic mode, parts of shapes that no company changes.

A product with another number of rows may be another kernel with another order of its sums, and in bfloat16 that shows
in the tokens. So in deterministic mode each chunk, whose shape is its prompt's own, is a pass for itself, and decoding
rows run so many at a time, the last ones filled up. Rows of different adapters run apart, so that the adapters'
products have that shape too. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.batch import Batch, KvSpan, Row


@dataclass(frozen=True, slots=True)
class Pass:
    """A part of a step. rows: its batch's own and, to fill up, its last one again: nothing is stored or drawn there."""

    batch: Batch
    rows: tuple[Row, ...]


def fixed_rows(max_sequences: int, most: int) -> int:
    """How many rows run at a time: the power of two that all sequences fit into, `most` where it is less."""
    return min(1 << (max_sequences - 1).bit_length(), most)


def passes(batch: Batch, rows: int | None) -> list[Pass]:
    """The passes of a step, each chunk alone and decoding rows `rows` at a time; one pass for all where that is None.

    Copies and masks stay with the step.
    """
    if rows is None:
        return [Pass(batch, batch.rows)]
    alone = [Pass(Batch(chunks=(chunk,)), ()) for chunk in batch.chunks]
    by_adapter: dict[str | None, list[int]] = {}
    for number, row in enumerate(batch.rows):
        by_adapter.setdefault(row.adapter, []).append(number)
    parts = [alike[i : i + rows] for alike in by_adapter.values() for i in range(0, len(alike), rows)]
    return alone + [_of_rows(batch, part, rows) for part in parts]


def _of_rows(batch: Batch, part: Sequence[int], size: int) -> Pass:
    place = {number: i for i, number in enumerate(part)}
    mine = tuple([batch.rows[number] for number in part])
    stretches = [
        KvSpan(tuple([place[number] for number in members if number in place]), lo, hi)
        for members, lo, hi in batch.kv_spans
    ]
    here = Batch(rows=mine, kv_spans=tuple([stretch for stretch in stretches if stretch.rows]))
    return Pass(here, mine + mine[-1:] * (size - len(mine)))
