"""Sizes that decoding steps are padded to, so that a few recorded steps serve them all. No torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_SMALL = (1, 2, 4, 8)
_FINE, _FINE_END = 8, 64  # up to 64 rows a step waits for memory and padding is nearly free, but sampling is not
_COARSE = 16
_LEAST, _PER_ROW = 2560, 32  # work list places: 32 choices over a prompt of 32k tokens take 2,144, over 8k 1,120


def buckets(most: int) -> tuple[int, ...]:
    """Rows of the recorded steps, rising: 1, 2, 4, 8, multiples of 8 to 64, of 16 beyond; the last holds `most`."""
    sizes = [*_SMALL, *range(_SMALL[-1] + _FINE, _FINE_END + 1, _FINE)]
    sizes += range(_FINE_END + _COARSE, most + _COARSE, _COARSE)
    return tuple([size for size in sizes if size < most] + [most])


def bucket_for(rows: int, sizes: Sequence[int]) -> int | None:
    """The smallest of the rising sizes that holds so many rows, if there is one."""
    at = bisect_left(sizes, rows)
    return sizes[at] if at < len(sizes) else None


def capacity(rows: int, context: int, span: int) -> int:
    """Partial results that a recorded step of so many rows has places for, its work list cut every `span` tokens.

    Enough for 32 spans a row, and where there are few rows for those of a long prompt. A step with a longer list takes
    so long that nothing is gained by having it recorded.
    """
    return min(rows * -(-context // span), max(rows * _PER_ROW, _LEAST))
