"""A step as passes through the model: normally one; in deterministic mode, where kernels choose the order of their sums
by shape, several, whose shapes do not depend on the other sequences.

A product with another number of rows may use another kernel with another order of its sums, and in bfloat16 that can
change tokens. So in deterministic mode each chunk, whose shape depends on its prompt alone, is a pass of its own, and
decoding rows run in passes of a fixed number of rows, the last one padded. Rows of different adapters run in different
passes, so that the adapters' products have that shape too. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.batch import Batch, KvSpan, Row


@dataclass(frozen=True, slots=True)
class Pass:
    """A part of a step.

    rows: the batch's own rows, padded with copies of the last one. Nothing is stored or drawn for the padding.
    """

    batch: Batch
    rows: tuple[Row, ...]


def rows_per_pass(max_sequences: int, most: int, *, steady: bool = True) -> int:
    """Return how many decoding rows run in one pass: the power of two that holds all sequences, but at most `most`.

    steady: of the model (Model.steady). In the classes of transformers that are not, a row's numbers may depend on its
    index in the batch, so each row runs alone.
    """
    return min(1 << (max_sequences - 1).bit_length(), most) if steady else 1


def passes(batch: Batch, rows: int | None) -> list[Pass]:
    """Return the passes of a step: each chunk alone, decoding rows `rows` at a time.

    One pass for everything if `rows` is None.

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
    kv_spans = [
        KvSpan(tuple([place[number] for number in members if number in place]), lo, hi)
        for members, lo, hi in batch.kv_spans
    ]
    here = Batch(rows=mine, kv_spans=tuple([span for span in kv_spans if span.rows]))
    return Pass(here, mine + mine[-1:] * (size - len(mine)))
