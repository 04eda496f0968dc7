"""The work list of a device's decode attention: KV spans of the fork tree cut into items, as arrays of int32.

The walk of the tree is in engine/kv_spans.py. There are no loops over items or positions here, because a step of 256
sequences has thousands of them. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from engine.batch import KvSpan, Row
from engine.kv_spans import span_tokens

MOST_PARTS = 32
"""How many items spans are cut into where they are too few."""

Ints = npt.NDArray[np.int32]
TABLE, LO, HI = 2, 3, 4
"""Columns of an item."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """What a work list is made for."""

    group: int
    """Query heads per key head."""
    wide: int
    """The lanes, rows x group, of the wide tile."""
    narrow: int
    """The lanes, rows x group, of the narrow tile."""
    fill: int
    """How many items keep the device busy. From twice as many on, items of the wide tile take two, four, ... spans
    each, because every row of an item costs a partial result that is written and read again.
    """
    span: int = 256
    """Items are cut at multiples of it; it divides kv_spans.SPAN."""
    shortest: int = 256
    """Where a list is so short that half of the device would be idle, items of several rows take a half or a quarter
    of a span, of so many tokens at least.
    """


@dataclass(frozen=True, slots=True)
class WorkList:
    """What engine/kernels/attn_items.py and merge_parts.py read."""

    items: Ints
    """[I, 8]: first (in `rows`), count, table (in `blocks`), lo, hi, slot, row (rows[first]), 0. An item's rows are
    rows[first : first + count], its keys the positions lo .. hi - 1; blocks[table] holds position lo, and the partial
    result of its i-th row is number slot + i. The wide items come first, and of either kind the longest.
    """
    rows: Ints
    """Indices into Batch.rows; items over the same KV span share theirs."""
    blocks: Ints
    """Block numbers. Where a row's newest position is, there is room for all blocks of the item, so that the item can
    grow.
    """
    parts: Ints
    """[R + 1]: row r's partial results, in the order of lo, are numbers part_slots[parts[r] : parts[r + 1]]."""
    part_slots: Ints
    """[slots]: numbers of partial results, see `parts`."""
    counts: Ints
    """[3]: wide items, narrow items, rows."""


class Tables:
    """Rows' block tables as arrays, remade only if they have changed, which happens in one of block_size steps."""

    def __init__(self) -> None:
        # By id(), which is unique because the tables are held here.
        self._known: dict[int, tuple[tuple[int, ...], Ints]] = {}

    def step(self, rows: Sequence[Row]) -> list[Ints]:
        """Return the rows' tables; forget those that no row has any more."""
        before = self._known
        tables = [row.blocks for row in rows]
        self._known = {id(t): before.get(id(t)) or (t, np.array(t, dtype=np.int32)) for t in tables}
        return [self._known[id(t)][1] for t in tables]


def work_list(
    rows: Sequence[Row], kv_spans: Sequence[KvSpan], tables: Sequence[Ints], block_size: int, tiling: Tiling
) -> WorkList:
    """Cut KV spans into items. Each row's spans must come in the order of lo. tables: the rows' tables from Tables.

    An item is wide if its rows times the group exceed the narrow tile; it holds as many rows as its tile has lanes for.
    For rows with a `cut` that would make the arithmetic depend on the other rows: their items are wide before the cut
    and narrow behind it, and always of one span.
    """
    if not kv_spans:
        nothing = np.zeros(0, dtype=np.int32)
        parts = np.zeros(len(rows) + 1, dtype=np.int32)
        return WorkList(nothing.reshape(0, 8), nothing, nothing, parts, nothing, _counts(0, 0, len(rows)))
    begins, ends = np.array([lo for _, lo, _ in kv_spans]), np.array([hi for _, _, hi in kv_spans])
    widths = np.array([len(members) for members, _, _ in kv_spans])
    cuts = np.array([rows[members[0]].cut for members, _, _ in kv_spans])
    wide = np.where(cuts > 0, ends <= cuts, widths * tiling.group > tiling.narrow)
    most = np.where(wide, tiling.wide, tiling.narrow) // tiling.group
    sharers = -(-widths // most)  # items over the same keys
    spans = np.full(len(kv_spans), span_tokens(tiling.span, block_size))
    # A single row keeps its spans: in deterministic mode a prompt shorter than a block has no cut either.
    free = wide & (cuts == 0) & (widths > 1)
    listed = int(((-(-ends // spans) - begins // spans) * sharers)[free].sum())
    spans[free] <<= _doublings(listed, tiling.fill)
    spans[free] //= _parts(listed, tiling, block_size)

    firsts = begins // spans
    counts = (-(-ends // spans) - firsts) * sharers  # items of each KV span
    of = np.repeat(np.arange(len(kv_spans)), counts)
    number = np.arange(len(of)) - np.repeat(_before(counts), counts)  # of an item in its KV span
    piece, part = firsts[of] + number // sharers[of], number % sharers[of]
    item_rows = np.minimum(widths[of] - part * most[of], most[of])
    table_sizes = -(-ends // block_size) - begins // block_size
    grows = ends == np.array([rows[members[0]].position + 1 for members, _, _ in kv_spans])
    places = np.where(grows, -(-ends // spans) * spans // block_size - begins // block_size, table_sizes)

    items = np.zeros((len(of), 8), dtype=np.int32)
    items[:, 0] = _before(widths)[of] + part * most[of]
    items[:, 1] = item_rows
    items[:, LO] = lows = np.maximum(piece * spans[of], begins[of])
    items[:, HI] = highs = np.minimum((piece + 1) * spans[of], ends[of])
    items[:, TABLE] = _before(places)[of] + (lows - begins[of]) // block_size
    items[:, 5] = slots = _before(item_rows)

    members = np.fromiter(chain.from_iterable([members for members, _, _ in kv_spans]), np.int32)
    offsets = np.repeat(items[:, 0] - slots, item_rows)
    items[:, 6] = members[items[:, 0]]
    row_of = members[offsets + np.arange(len(offsets))]  # by slot
    parts = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(np.bincount(row_of, minlength=len(rows)), out=parts[1:])
    return WorkList(
        items=items[np.lexsort((lows - highs, ~wide[of]))],
        rows=members,
        blocks=_blocks(kv_spans, tables, block_size, places),
        parts=parts,
        part_slots=np.argsort(row_of, kind="stable").astype(np.int32),
        counts=_counts(int(counts[wide].sum()), int(counts[~wide].sum()), len(rows)),
    )


def newest(items: Ints, rows: Ints, positions: Ints) -> npt.NDArray[np.intp]:
    """Return, by row, the item of a work list that its newest position is in.

    rows: WorkList.rows. positions: by row, its newest.
    """
    owners = rows[items[:, 0]]
    last = np.flatnonzero(items[:, HI] == positions[owners] + 1)
    found = np.zeros(len(positions), dtype=np.intp)
    found[owners[last]] = last
    return found


def _blocks(kv_spans: Sequence[KvSpan], tables: Sequence[Ints], block_size: int, places: npt.NDArray[np.int64]) -> Ints:
    """Return the spans' block numbers, each span's followed by zeros up to its number of places."""
    blocks = np.zeros(int(places.sum()), dtype=np.int32)
    at = 0
    for (members, lo, hi), room in zip(kv_spans, places.tolist(), strict=True):
        own = tables[members[0]][lo // block_size : -(-hi // block_size)]
        blocks[at : at + len(own)] = own
        at += room
    return blocks


def _counts(wide: int, narrow: int, rows: int) -> Ints:
    return np.array([wide, narrow, rows], dtype=np.int32)


def _before(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return, for each size, the sum of all sizes before it."""
    sums: npt.NDArray[np.int64] = np.cumsum(sizes)
    return sums - sizes


def _doublings(items: int, fill: int) -> int:
    """Return how often so many items can be halved and still be at least `fill`."""
    return max((items // max(fill, 1)).bit_length() - 1, 0)


def _parts(items: int, tiling: Tiling, block_size: int) -> int:
    """Return into how many equal parts of whole blocks each span is cut so that the items keep the device busy.

    There will be at most MOST_PARTS of them, because each of an item's rows merges that many results.
    """
    span, parts = span_tokens(tiling.span, block_size), 1
    while (
        0 < items * 2 * parts <= min(tiling.fill, MOST_PARTS)
        and span % (2 * parts * block_size) == 0
        and span >= 2 * parts * tiling.shortest
    ):
        parts *= 2
    return parts
