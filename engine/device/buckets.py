"""Sizes that decoding steps are padded to, so that a few recorded steps serve all of them. No torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from engine.device.worklist import MOST_PARTS

_SMALL = (1, 2, 4, 8)
_FINE, _FINE_END = 8, 64  # up to 64 rows a step is memory-bound and padding is nearly free, but sampling is not
_COARSE = 16
_LEAST, _PER_ROW = 2560, 32  # work list places: 32 choices over a prompt of 32k tokens take 2,144, over 8k 1,120


def buckets(most: int) -> tuple[int, ...]:
    """Return the rows of the recorded steps, ascending: 1, 2, 4, 8, multiples of 8 up to 64, of 16 beyond; the last is
    `most`.
    """
    sizes = [*_SMALL, *range(_SMALL[-1] + _FINE, _FINE_END + 1, _FINE)]
    sizes += range(_FINE_END + _COARSE, most + _COARSE, _COARSE)
    return tuple([size for size in sizes if size < most] + [most])


def bucket_for(rows: int, sizes: Sequence[int]) -> int | None:
    """Return the smallest of the ascending sizes that holds so many rows; None if there is none."""
    at = bisect_left(sizes, rows)
    return sizes[at] if at < len(sizes) else None


def capacity(rows: int, context: int, span: int) -> int:
    """Return how many partial results a recorded step of so many rows has places for, with its work list cut every
    `span` tokens.

    Enough for 32 spans per row and, if there are few rows, for those of a long prompt. A step with a longer list takes
    so long that recording it would gain nothing. Rows that share may have MOST_PARTS more, of spans that are cut
    shorter.
    """
    parts = -(-context // span) + (MOST_PARTS if rows > 1 else 0)
    return min(rows * parts, max(rows * _PER_ROW, _LEAST))
