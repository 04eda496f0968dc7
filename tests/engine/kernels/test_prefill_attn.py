"""Prefill attention against the plain reference: random chunks over random block tables, and to the bit however cut."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from engine.batch import Chunk
from engine.device.tiles import plan_tiles
from engine.kernels import launch, reference
from engine.kernels.prefill_attn import prefill_attn

BLOCK = 4
SMALL = launch.Prefill(rows=16, keys=8, warps=1, stages=1)
CLOSE = {torch.float32: 1e-5, torch.float16: 4e-3}


class Case:
    """A pool full of numbers, sequences with block tables and queries all along them."""

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        group: int = 3,
        kv_heads: int = 1,
        head_dim: int = 16,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        torch.manual_seed(seed)
        chance = random.Random(seed)
        needed = [-(-length // BLOCK) for length in lengths]
        names = chance.sample(range(2 * sum(needed)), sum(needed))
        self.tables = [tuple(names.pop() for _ in range(count)) for count in needed]
        self.kv = torch.randn(2 * kv_heads, 2 * sum(needed) * BLOCK, head_dim).to(dtype)
        self.q = [torch.randn(length, group * kv_heads, head_dim).to(dtype) for length in lengths]
        self.group = group

    def run(
        self,
        cuts: Sequence[tuple[int, int, int]],
        shape: launch.Prefill = SMALL,
        *,
        spare: int = 0,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        """Chunks (sequence, start, end) in one launch; gives each one's [T, Q, D]. spare: places left in `tiles`."""
        chunks = [Chunk(s, (1,) * (end - start), start, self.tables[s]) for s, start, end in cuts]
        plan = plan_tiles(chunks, shape.queries(self.group), BLOCK)
        left_over = torch.tensor([0, 0, 1, 1, 0], dtype=torch.int32)  # would put position 0 where position 1 is
        tiles = torch.cat((torch.from_numpy(plan.tiles), left_over.repeat(spare, 1)))
        q = torch.cat([self.q[s][start:end] for s, start, end in cuts])
        out = torch.full((len(q), q[0].numel()), math.nan, dtype=q.dtype)
        prefill_attn(
            q,
            self.kv,
            tiles,
            torch.tensor([len(plan.tiles)], dtype=torch.int32),
            torch.from_numpy(plan.blocks),
            out,
            block_size=BLOCK,
            scale=q.shape[2] ** -0.5,
            window=window,
            softcap=softcap,
            sinks=sinks,
            shape=shape,
        )
        return list(torch.split(out.view(q.shape), [end - start for _, start, end in cuts]))

    def expected(
        self,
        cut: tuple[int, int, int],
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A chunk's attention by the reference, in float64."""
        sequence, start, end = cut
        slots = reference.span_slots(self.tables[sequence], 0, end, BLOCK)
        q, (keys, values) = self.q[sequence][start:end].double(), self.kv.double().chunk(2)
        scale = q.shape[2] ** -0.5
        return reference.prefill_attn(q, keys, values, slots, start, scale, window=window, softcap=softcap, sinks=sinks)


def _random_cuts(chance: random.Random, lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    """Of each sequence one stretch, anywhere."""
    cuts = []
    for sequence, length in enumerate(lengths):
        start = chance.choice([0, chance.randrange(length)])
        cuts.append((sequence, start, chance.randrange(start, length) + 1))
    chance.shuffle(cuts)
    return cuts


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_random_chunks_equal_the_reference(seed: int, dtype: torch.dtype) -> None:
    chance = random.Random(seed)
    lengths = [chance.randrange(1, 50) for _ in range(chance.randrange(1, 5))]
    case = Case(
        lengths,
        group=chance.randrange(1, 9),
        kv_heads=chance.randrange(1, 3),
        head_dim=chance.choice([4, 16, 20, 32]),
        dtype=dtype,
        seed=seed,
    )
    window = chance.choice([None, None, 1, 7, 8, 30])
    softcap = chance.choice([None, 2.0])
    sinks = chance.choice([None, torch.randn(case.q[0].shape[1])])
    cuts = _random_cuts(chance, lengths)
    got = case.run(cuts, window=window, softcap=softcap, sinks=sinks)
    for cut, out in zip(cuts, got, strict=True):
        expected = case.expected(cut, window, softcap, sinks)
        torch.testing.assert_close(out.double(), expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize("window", [None, 11])
@pytest.mark.parametrize("cuts", [(0, 1, 33), (0, 16, 32, 33), (0, 7, 8, 29, 33)])
def test_however_a_prompt_is_cut_the_bits_are_the_same(cuts: tuple[int, ...], window: int | None) -> None:
    case = Case([33], group=3, dtype=torch.float16)
    [whole] = case.run([(0, 0, 33)], window=window)
    parts = [case.run([(0, start, end)], window=window)[0] for start, end in pairwise(cuts)]
    assert torch.equal(torch.cat(parts), whole)


def test_whoever_else_is_in_the_launch_the_bits_are_the_same() -> None:
    case = Case([33, 21, 5], group=4, dtype=torch.float16)
    [alone] = case.run([(0, 9, 33)])
    together = case.run([(1, 0, 21), (0, 9, 33), (2, 4, 5)])
    assert torch.equal(together[1], alone)


def test_a_work_list_shorter_than_its_capacity() -> None:
    case = Case([19], group=2)
    [exact] = case.run([(0, 0, 19)])
    [spare] = case.run([(0, 0, 19)], spare=3)
    assert torch.equal(exact, spare)


@pytest.mark.parametrize("group", [1, 5, 16, 21])
def test_groups_that_fill_a_tile_in_part_or_take_several(group: int) -> None:
    case = Case([13], group=group, kv_heads=2)
    [out] = case.run([(0, 2, 13)])
    torch.testing.assert_close(out.double(), case.expected((0, 2, 13)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [SMALL, replace(SMALL, keys=16), replace(SMALL, rows=32), replace(SMALL, rows=8)])
@pytest.mark.parametrize("window", [None, 1, 9, 100])
def test_any_tile_gives_the_same(shape: launch.Prefill, window: int | None) -> None:
    case = Case([29], group=2)
    [out] = case.run([(0, 5, 29)], shape, window=window)
    torch.testing.assert_close(out.double(), case.expected((0, 5, 29), window), rtol=1e-5, atol=1e-5)


def test_what_is_not_of_the_sequence_is_not_read() -> None:
    # Slots behind the chunk's end, and all other blocks, hold numbers that would spread.
    case = Case([10, 30], dtype=torch.float16)
    [before] = case.run([(0, 0, 10)])
    mine = set(reference.span_slots(case.tables[0], 0, 10, BLOCK).tolist())
    case.kv[:, [slot for slot in range(case.kv.shape[1]) if slot not in mine]] = math.nan
    [after] = case.run([(0, 0, 10)])
    assert torch.equal(before, after)


def test_keys_behind_the_window_are_not_read() -> None:
    case = Case([60], group=1, dtype=torch.float16)
    [before] = case.run([(0, 48, 60)], window=4)
    case.kv[:, reference.span_slots(case.tables[0], 0, 40, BLOCK)] = math.nan
    [after] = case.run([(0, 48, 60)], window=4)
    assert torch.equal(before, after)


def test_scores_far_apart_neither_overflow_nor_vanish() -> None:
    case = Case([40])
    case.kv *= 60
    [out] = case.run([(0, 0, 40)])
    assert out.isfinite().all()
    torch.testing.assert_close(out.double(), case.expected((0, 0, 40)), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("sink", [-math.inf, 30.0])
def test_sinks_of_nothing_and_of_nearly_all(sink: float) -> None:
    # Behind the window's edge a row's first block of keys has none that it sees.
    case = Case([30], group=2)
    sinks = torch.tensor([sink, 0.5])
    [out] = case.run([(0, 0, 30)], window=3, sinks=sinks)
    expected = case.expected((0, 0, 30), window=3, sinks=sinks)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_queries_may_lie_among_other_columns() -> None:
    case = Case([9], group=2, kv_heads=2)
    wide = torch.randn(9, 8, 16)
    wide[:, :4] = case.q[0]
    [expected] = case.run([(0, 0, 9)])
    plan = plan_tiles([Chunk(0, (1,) * 9, 0, case.tables[0])], SMALL.queries(2), BLOCK)
    out = torch.empty(9, 64)
    tiles, blocks = torch.from_numpy(plan.tiles), torch.from_numpy(plan.blocks)
    count = torch.tensor([len(tiles)], dtype=torch.int32)
    prefill_attn(wide[:, :4], case.kv, tiles, count, blocks, out, block_size=BLOCK, scale=0.25, shape=SMALL)
    assert torch.equal(out.view(9, 4, 16), expected)
