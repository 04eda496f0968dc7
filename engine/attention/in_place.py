"""Which work items are read in place: their blocks are consecutive in the cache, so nothing needs to be copied.

A prompt mostly gets consecutive blocks. Then its keys are a slice of the pool, and a kernel that iterates over the keys
itself takes all of them at once: the item is not cut, copied, padded or masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from engine.batch import Row
from engine.kv_spans import Item


class Lying(NamedTuple):
    """One item that is read in place, and the slots that its rows see of it; all its rows see the same."""

    item: Item
    slots: slice


def lying(
    rows: Sequence[Row], items: Iterable[Item], block_size: int, least: int, window: int | None = None
) -> tuple[list[Lying], list[Item]]:
    """Return the items of at least `least` keys that can be read in place, joined if they continue each other, and the
    other items unchanged.

    If a step has only one item it may be shorter, because there is nothing to batch it with.
    """
    there: list[Lying] = []
    others: list[Item] = []
    joined = _joined(items)
    for item, pieces in joined:
        begins = {max(rows[row].position - window + 1, item.lo) if window else item.lo for row in item.rows}
        long = item.hi - item.lo >= least or len(joined) == 1
        if long and len(begins) == 1 and _follow(item.blocks):
            skipped = begins.pop() - item.lo
            first = item.blocks[0] * block_size
            there.append(Lying(item, slice(first + skipped, first + item.hi - item.lo)))
        else:
            others += pieces
    return there, others


def _joined(items: Iterable[Item]) -> list[tuple[Item, list[Item]]]:
    """Join items that continue each other; return each with the items that it was made of."""
    joined: list[tuple[Item, list[Item]]] = []
    for item in items:
        if joined:
            last, pieces = joined[-1]
            if (last.rows, last.hi) == (item.rows, item.lo) and _follow((last.blocks[-1], *item.blocks)):
                joined[-1] = replace(last, blocks=last.blocks + item.blocks, hi=item.hi), [*pieces, item]
                continue
        joined.append((item, [item]))
    return joined


def _follow(blocks: Sequence[int]) -> bool:
    return all(after == before + 1 for before, after in pairwise(blocks))
