"""Sizes of recorded steps."""

from __future__ import annotations

import pytest

from engine.device.buckets import bucket_for, buckets, capacity


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (20, (1, 2, 4, 8, 16, 20)),
        (100, (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100)),
    ],
)
def test_buckets(most: int, sizes: tuple[int, ...]) -> None:
    assert buckets(most) == sizes


def test_every_number_of_rows_has_the_smallest_bucket_that_holds_it() -> None:
    sizes = buckets(256)
    for rows in range(1, 257):
        assert bucket_for(rows, sizes) == min(size for size in sizes if size >= rows)
    assert bucket_for(257, sizes) is None


def test_places_of_work_lists() -> None:
    assert capacity(1, 4096, 256) == 16  # one row of any length
    assert capacity(1, 1 << 20, 256) == 512
    assert capacity(256, 1 << 20, 256) == 256 * 32
    assert capacity(8, 300, 256) == 16
