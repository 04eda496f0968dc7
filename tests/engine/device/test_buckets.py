"""Sizes of recorded steps."""

from __future__ import annotations

from itertools import count, islice

import pytest

from engine.batch import Draw, Row
from engine.device.buckets import bucket_for, buckets, capacity
from engine.device.worklist import Tables, Tiling, work_list
from engine.kernels import launch
from engine.kv_spans import plan_kv_spans
from engine.messages import Sampling


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
    assert capacity(1, 1 << 20, 256) == 2560
    assert capacity(256, 1 << 20, 256) == 256 * 32
    assert capacity(8, 300, 256) == 8 * (2 + 32)  # where a list is short, its items are


@pytest.mark.parametrize(
    ("n", "prompt"),
    [(2, 300), (2, 4095), (4, 2037), (8, 8191), (16, 8191), (32, 8191), (32, 32749), (128, 8191), (256, 8191)],
)
def test_choices_over_a_long_prompt_fit_a_recorded_step(n: int, prompt: int) -> None:
    size, own, group = 16, 300, 2
    shared = tuple(range(prompt // size))
    fresh = count(len(shared))
    each = -(-(prompt % size + own) // size)
    draw = Draw(0, 0, 0, Sampling())
    rows = [Row(i, 0, prompt + own - 1, shared + tuple(islice(fresh, each)), draw) for i in range(n)]
    bucket = bucket_for(n, buckets(256))
    assert bucket is not None
    tile = launch.attn(128, group, 2, bucket)
    fill = 132 * tile.wide.per_core * 9 // 10 // 8  # a Hopper GPU, 8 key heads
    tiling = Tiling(group, tile.wide.lanes, tile.narrow.lanes, fill)
    work = work_list(rows, plan_kv_spans(rows, size, gate=64), Tables().step(rows), size, tiling)
    assert len(work.part_slots) <= capacity(bucket, max(prompt + own + 1, 2048), tiling.span)
