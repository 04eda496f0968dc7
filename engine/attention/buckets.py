"""Which work items run as one batch of products: a cost of padding against a cost of launching."""

from __future__ import annotations

from collections.abc import Sequence

from engine.batch import Item

_LAUNCH = 6000  # what one more bucket of items costs a layer, in the units of `_cost`
_BUCKET_KEYS = 1 << 14  # keys gathered at once at the most: what is copied should fit into the last cache


def alike(items: Sequence[Item]) -> list[list[Item]]:
    """Group items so that padding each to its group's widest and longest, and launching the groups, costs least.

    Shapes are put in order, widest and then longest first, and the order is cut where the sum of costs is
    lowest: best[i] is the cost of the first i shapes, cut[i] where their last group begins.
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
    groups: list[list[Item]] = []
    end = len(shapes)
    while end:
        group = [item for shape in shapes[cut[end] : end] for item in by_shape[shape]]
        at_once = max(_BUCKET_KEYS // max(keys[cut[end] : end]), 1)
        groups += [group[i : i + at_once] for i in range(0, len(group), at_once)]
        end = cut[end]
    return groups


def _cost(rows: int, keys: int) -> int:
    """What an item costs a layer, in units of about 10 ns (measured: reading a key costs as much as scoring 4 rows)."""
    return keys * (4 + rows)
