"""Which work items run as one batch of products: the cost of padding is weighed against the cost of launching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from engine.batch import Row
from engine.kv_spans import Item

_LAUNCH = 6000  # what one more bucket of items costs a layer, in the units of `_cost`
_BUCKET_KEYS = 1 << 14  # most keys gathered at once: the copy should fit into the last-level cache
WIDE = 4  # rows of a fixed item before the cut: padding for a single row, against how often many rows read a key
_STEP = 128  # fixed items' spans are multiples of so many keys: few shapes, against little padding


class BucketItems(NamedTuple):
    """The items of one bucket, to run as one batch of products, each padded to `width` rows and `span` blocks."""

    items: list[Item]
    width: int
    span: int


def buckets_of_fixed_shapes(rows: Sequence[Row], items: Sequence[Item], block_size: int) -> list[BucketItems]:
    """Group items by shapes that depend on the item alone.

    Items before their rows' cut have one width; items behind it, which belong to one row each, have another. Spans are
    rounded up to multiples of the same number of keys.
    """
    step = max(_STEP // block_size, 1)
    by_shape: dict[tuple[int, int], list[Item]] = {}
    for item in items:
        width = WIDE if item.hi <= rows[item.rows[0]].cut else 1
        span = -(-len(item.blocks) // step) * step
        tiles = [item.rows[i : i + width] for i in range(0, len(item.rows), width)]
        by_shape.setdefault((width, span), []).extend([replace(item, rows=tile) for tile in tiles])
    return [
        BucketItems(part, width, span)
        for (width, span), mine in by_shape.items()
        for part in _at_once(mine, span * block_size)
    ]


def cheapest_buckets(items: Sequence[Item]) -> list[BucketItems]:
    """Group items so that padding each item to its group's widest and longest, and launching the groups, costs least.

    Shapes are sorted, widest and then longest first, and the order is cut where the sum of costs is lowest: best[i] is
    the cost of the first i shapes, cut[i] is where their last group begins.
    """
    by_shape: dict[tuple[int, int], list[Item]] = {}
    for item in items:
        by_shape.setdefault((len(item.rows), len(item.blocks)), []).append(item)
    shapes = sorted(by_shape, reverse=True)
    keys = [max(item.hi - item.lo for item in by_shape[shape]) for shape in shapes]
    best, cut = [0], [0]
    for end in range(1, len(shapes) + 1):
        longest = count = 0
        options = []
        for begin in range(end - 1, -1, -1):
            longest = max(longest, keys[begin])
            count += len(by_shape[shapes[begin]])
            options.append((best[begin] + _LAUNCH + count * _cost(shapes[begin][0], longest), begin))
        cost, begin = min(options)
        best.append(cost)
        cut.append(begin)
    groups: list[BucketItems] = []
    end = len(shapes)
    while end:
        group = [item for shape in shapes[cut[end] : end] for item in by_shape[shape]]
        for part in _at_once(group, max(keys[cut[end] : end])):
            width, span = max([len(item.rows) for item in part]), max([len(item.blocks) for item in part])
            groups.append(BucketItems(part, width, span))
        end = cut[end]
    return groups


def _at_once(items: list[Item], keys: int) -> list[list[Item]]:
    """Split items of up to `keys` keys into parts whose keys are gathered at once."""
    count = max(_BUCKET_KEYS // keys, 1)
    return [items[i : i + count] for i in range(0, len(items), count)]


def _cost(rows: int, keys: int) -> int:
    """Return what an item costs a layer, in units of about 10 ns (measured: reading a key costs as much as scoring 4
    rows).
    """
    return keys * (4 + rows)
