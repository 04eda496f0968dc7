"""Which keys the rows of a step read, and which of them they read together: KV spans, planned from the fork tree; and
items, the pieces of spans that a backend on a CPU reads at once.

Pure functions of rows; no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.batch import Batch, KvSpan, Row

SPAN = 512
"""Tokens of KV per item on a CPU. Smaller items must divide it, both in whole blocks, for cuts that do not depend on
other rows.
"""
FIXED_SPAN = 256
"""Tokens of KV per item in deterministic mode and on a device. The block size must divide it in deterministic mode."""


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of the attention work list: some rows read one span of KV, once."""

    rows: tuple[int, ...]
    """Indices into Batch.rows."""
    blocks: tuple[int, ...]
    """The blocks that cover the absolute key positions lo .. hi - 1."""
    lo: int
    """A multiple of the block size. A row's partial results are merged in the order of `lo`."""
    hi: int
    slot: int
    """The number of the partial result of rows[0]; the partial result of rows[i] is slot + i."""


@dataclass(frozen=True, slots=True)
class Reads:
    """Tokens of KV that one layer's decode attention reads in a step.

    items: by all items of the work list. shared: by items of several rows. unshared: what it would have been if every
    row had read its whole past by itself.
    """

    items: int = 0
    shared: int = 0
    unshared: int = 0

    def __add__(self, other: Reads) -> Reads:
        return Reads(self.items + other.items, self.shared + other.shared, self.unshared + other.unshared)


def count_reads(rows: Sequence[Row], kv_spans: Sequence[KvSpan]) -> Reads:
    """Count what some KV spans read, and what the same rows would have read without sharing."""
    return Reads(
        items=sum([hi - lo for _, lo, hi in kv_spans]),
        shared=sum([hi - lo for members, lo, hi in kv_spans if len(members) > 1]),
        unshared=sum([row.position + 1 for row in rows]),
    )


def plan_kv_spans(rows: Sequence[Row], block_size: int, *, gate: int = 0) -> tuple[KvSpan, ...]:
    """Plan the decode attention of some rows: each block that several rows share is read once for all of them.

    The rows' block tables form a tree (the fork tree, of any number of groups and any depth). It is walked from the
    root: a shared stretch becomes one span for all rows below it, and the rest of each row becomes a span of its own.
    Every position of every row, the newest included, is covered exactly once; a row's spans come in the order of `lo`.

    gate: a stretch of t tokens under r rows is shared only if (r - 1) * t, the number of tokens that need not be read
    again, is at least `gate`; otherwise the spans further down begin earlier and cover it.

    A row with a `cut` has no span across the cut, and shares nothing behind it. Before the cut it shares only spans
    that end at the cut of all their rows or at a multiple of SPAN. So when the spans are cut into items whose size
    divides SPAN, both in whole blocks, the row's own items are the same whatever other rows there are.

    The tables must be as forking makes them: rows that hold the same block hold the same blocks before it.
    """
    kv_spans: list[KvSpan] = []
    whole_span = span_tokens(SPAN, block_size) // block_size
    # How many leading blocks a row may share: not the one that it writes to, even if it is in other tables.
    limits = [min(row.position, row.cut or row.position) // block_size for row in rows]
    # Each entry: rows that hold the same first `same` blocks, of which the first `start` are covered already.
    pending: list[tuple[tuple[int, ...], int, int]] = [(tuple(range(len(rows))), 0, 0)] if rows else []
    while pending:
        members, start, same = pending.pop()
        if len(members) == 1:
            row, lo = rows[members[0]], start * block_size
            if lo < row.cut <= row.position:
                kv_spans.append(KvSpan(members, lo, row.cut))
                lo = row.cut
            kv_spans.append(KvSpan(members, lo, row.position + 1))
            continue
        most = min([limits[member] for member in members])
        end = _common_blocks(rows, members, same, most)
        cuts = {rows[member].cut for member in members}
        shared = end if cuts <= {0, end * block_size} else end - end % whole_span
        if shared > start and (len(members) - 1) * (shared - start) * block_size >= gate:
            kv_spans.append(KvSpan(members, start * block_size, shared * block_size))
            start = shared
        parts: dict[int, list[int]] = {}
        together = start < end < max([limits[member] for member in members])
        for member in members:
            # Rows that end here may still share, without the others, the stretch that was not shared above.
            last = -1 - len(rows) if together else ~member
            key = rows[member].blocks[end] if limits[member] > end else last
            parts.setdefault(key, []).append(member)
        pending.extend((tuple(part), start, end + 1) for part in reversed(parts.values()))
    return tuple(kv_spans)


def continue_kv_spans(before: Batch, rows: Sequence[Row], block_size: int) -> tuple[KvSpan, ...] | None:
    """Return what plan_kv_spans returns for the rows of a batch, each one position further, in the same blocks or with
    one more; None if these are other rows.

    Only each row's last span differs: what a row writes to belongs to it alone, and to be shared it would have to
    change its table.
    """
    if len(rows) != len(before.rows):
        return None
    for row, old in zip(rows, before.rows, strict=True):
        position = row.position
        if position != old.position + 1 or row.sequence != old.sequence:
            return None
        if row.blocks is not old.blocks and (position % block_size or row.blocks[:-1] != old.blocks):
            return None
    return tuple(
        [
            KvSpan(members, lo, hi + 1) if len(members) == 1 and hi == rows[members[0]].position else one
            for one in before.kv_spans
            for members, lo, hi in (one,)
        ]
    )


def _common_blocks(rows: Sequence[Row], members: tuple[int, ...], known: int, most: int) -> int:
    """Return how many leading blocks all members share, at most `most`.

    `known` of them are known to be shared. Bisection works because sharing a block means sharing all blocks before it.
    """
    low, high = min(known, most), most
    while low < high:
        middle = (low + high) // 2
        if len({rows[member].blocks[middle] for member in members}) == 1:
            low = middle + 1
        else:
            high = middle
    return low


def span_tokens(span: int, block_size: int) -> int:
    """Return `span` rounded down to whole blocks, at least one."""
    return max(span // block_size, 1) * block_size


def cut_items(
    rows: Sequence[Row], kv_spans: Sequence[KvSpan], block_size: int, *, span: int = SPAN
) -> tuple[Item, ...]:
    """Cut KV spans into items at multiples of `span` (rounded down to whole blocks), wherever the spans begin.

    So the cuts do not depend on the other rows of the batch. A row's items come in the order of `lo`; slots are dense
    from 0.
    """
    items: list[Item] = []
    slot = 0
    span = span_tokens(span, block_size)
    for members, begin, end in kv_spans:
        table = rows[members[0]].blocks
        for lo in (begin, *range(begin - begin % span + span, end, span)):
            hi = min(lo - lo % span + span, end)
            items.append(Item(members, table[lo // block_size : -(-hi // block_size)], lo, hi, slot))
            slot += len(members)
    return tuple(items)
