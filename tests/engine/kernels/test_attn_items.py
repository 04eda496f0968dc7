"""Decode attention's kernels against their references: fork trees, tiles of both widths, cuts, windows, sinks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.batch import KvSpan, Row
from engine.device.worklist import Tables, Tiling, WorkList, work_list
from engine.kernels import launch, reference
from engine.kernels.attn_items import Work, attn_items
from engine.kernels.merge_parts import merge_parts
from engine.kv_spans import Item, plan_kv_spans
from tests.engine.forest import BLOCK, DRAW, forest_of

SCALE = 0.3
CLOSE: dict[torch.dtype, dict[str, Any]] = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.float16: {"rtol": 3e-3, "atol": 3e-3},
}


class Case:
    """Rows over a cache full of numbers, [2K, S, D], and their queries, [R, Q, D]."""

    def __init__(
        self,
        rows: Sequence[Row],
        heads: int = 4,
        kv_heads: int = 2,
        dim: int = 16,
        dtype: torch.dtype = torch.float32,
        *,
        spare: int = 0,
        span: int = 64,
        **settings: Any,
    ) -> None:
        torch.manual_seed(5)
        self.rows, self.spare, self.span, self.settings = list(rows), spare, span, settings
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        slots = (max(max(row.blocks) for row in rows) + 1) * BLOCK
        self.kv = torch.randn(2 * kv_heads, slots, dim).to(dtype)
        self.q = (torch.randn(len(rows), heads, dim) * 2).to(dtype)
        self.sinks = torch.randn(heads) * 2 if settings.pop("sinks", False) else None

    def tiling(self) -> Tiling:
        group = self.heads // self.kv_heads
        tiles = launch.attn(self.dim, group, self.kv.element_size(), len(self.rows))
        return Tiling(group, tiles.wide.lanes, tiles.narrow.lanes, fill=1000, span=self.span)

    def listed(self, rows: Sequence[Row], kv_spans: Sequence[KvSpan] | None = None) -> WorkList:
        kv_spans = plan_kv_spans(rows, BLOCK) if kv_spans is None else kv_spans
        return work_list(rows, kv_spans, Tables().step(rows), BLOCK, self.tiling())

    def run(self, work: WorkList, chosen: Sequence[int] | None = None) -> tuple[torch.Tensor, ...]:
        """Partials, their log-sum-exps and the rows' attention [R, Q, D]; all buffers `spare` longer than needed."""
        rows = self.rows if chosen is None else [self.rows[i] for i in chosen]
        q = self.q if chosen is None else self.q[list(chosen)]
        slots = len(work.part_slots) + self.spare
        partial, lse = torch.full((slots, self.heads, self.dim), torch.nan), torch.full((slots, self.heads), torch.nan)
        out = torch.full((len(rows) + self.spare, self.heads * self.dim), torch.nan, dtype=q.dtype)
        tensors = self.tensors(work, len(rows))
        positions = torch.tensor([row.position for row in rows], dtype=torch.int32)
        attn_items(q, self.kv, tensors, positions, partial, lse, block_size=BLOCK, scale=SCALE, **self.settings)
        merge_parts(partial, lse, tensors, out, self.sinks)
        if self.spare:
            assert out[len(rows) :].isnan().all()
            assert partial[len(work.part_slots) :].isnan().all()
        used = len(work.part_slots)
        return partial[:used], lse[:used], out[: len(rows)].view(q.shape)

    def tensors(self, work: WorkList, rows: int) -> Work:
        def longer(array: Any) -> torch.Tensor:
            tensor = torch.from_numpy(array)
            return torch.cat((tensor, torch.full((self.spare, *tensor.shape[1:]), 10**9, dtype=torch.int32)))

        assert work.counts.tolist()[2] == rows
        arrays = (work.items, work.rows, work.blocks, work.parts, work.part_slots)
        items, of_rows, blocks, parts, part_slots = (longer(array) for array in arrays)
        return Work(items, of_rows, blocks, parts, part_slots, torch.from_numpy(work.counts))

    def whole(self) -> torch.Tensor:
        """Each row's attention over all its past in one piece, [R, Q, D] in float64."""
        out = torch.empty(self.q.shape, dtype=torch.float64)
        k, v = self.kv.double().chunk(2)
        for i, row in enumerate(self.rows):
            slots = reference.span_slots(row.blocks, 0, row.position + 1, BLOCK)
            q = self.q[i : i + 1].double()
            past = reference.prefill_attn(q, k, v, slots, row.position, SCALE, sinks=self.sinks, **self.settings)
            out[i] = past[0]
        return out


def items_of(work: WorkList, size: int = BLOCK) -> list[Item]:
    """The list as the reference reads it."""
    items: list[Item] = []
    for first, count, table, lo, hi, slot, _, _ in work.items.tolist():
        blocks = work.blocks[table : table - (lo - hi) // size].tolist()
        items.append(Item(tuple(work.rows[first : first + count].tolist()), tuple(blocks), lo, hi, slot))
    return items


def check(case: Case, work: WorkList) -> None:
    close = CLOSE[case.q.dtype]
    partial, lse, out = case.run(work)
    items, (k, v) = items_of(work), case.kv.double().chunk(2)
    positions = [row.position for row in case.rows]
    expected = reference.attn_items(case.q.double(), k, v, items, BLOCK, SCALE, positions=positions, **case.settings)
    torch.testing.assert_close(partial.double(), expected[0], **close)
    torch.testing.assert_close(lse.double(), expected[1], **close)
    merged = reference.merge_parts(*expected, items, len(case.rows), sinks=case.sinks)
    torch.testing.assert_close(merged, case.whole(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(out.double(), merged, **close)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_random_fork_trees_equal_the_reference(seed: int, dtype: torch.dtype) -> None:
    chance = random.Random(seed)
    rows = forest_of(chance, 1 + seed % 3, seed % 4, longest=70, siblings=3).rows
    kv_heads = chance.randrange(1, 3)
    case = Case(rows, kv_heads * (1 + seed), kv_heads, dtype=dtype, span=chance.choice([16, 64, 256]))
    check(case, case.listed(rows))


def test_sixteen_groups() -> None:
    rows = forest_of(random.Random(1), 16, 1, longest=16, siblings=3).rows
    case = Case(rows, 3, 1)
    check(case, case.listed(rows))


@pytest.mark.parametrize("dim", [8, 24, 80])
def test_heads_that_are_no_power_of_two_wide(dim: int) -> None:
    case = Case(forest_of(random.Random(3), 1, 1, longest=60).rows, 6, 2, dim)
    check(case, case.listed(case.rows))


@pytest.mark.parametrize("heads", [16, 71])
def test_many_query_heads_to_a_key_head(heads: int) -> None:
    case = Case(forest_of(random.Random(3), 1, 1, siblings=3).rows, heads, 1)
    check(case, case.listed(case.rows))


@pytest.mark.parametrize(
    "settings",
    [
        {"window": 1},
        {"window": 17},
        {"window": 70},
        {"softcap": 2.0},
        {"sinks": True},
        {"window": 33, "softcap": 3.0, "sinks": True},
    ],
    ids=str,
)
def test_windows_caps_and_sinks(settings: dict[str, Any]) -> None:
    rows = forest_of(random.Random(6), 1, 2, longest=90, siblings=4).rows
    case = Case(rows, span=64, **settings)
    check(case, case.listed(rows))


def test_any_cut_and_any_order_of_siblings_gives_the_same() -> None:
    chance = random.Random(9)
    rows = forest_of(chance, 2, 1, longest=50, siblings=4).rows
    case = Case(rows)
    expected = case.run(case.listed(rows))[2]
    kv_spans: list[KvSpan] = []
    for number, row in enumerate(rows):
        lo = 0
        while lo <= row.position:
            hi = min(lo + BLOCK * chance.randrange(1, 9), row.position + 1)
            kv_spans.append(KvSpan((number,), lo, hi))
            lo = hi
    torch.testing.assert_close(case.run(case.listed(rows, kv_spans))[2], expected, rtol=1e-5, atol=1e-6)
    order = chance.sample(range(len(rows)), len(rows))
    shuffled = case.run(case.listed([rows[i] for i in order]), order)[2]
    torch.testing.assert_close(shuffled, expected[order], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"window": 50}], ids=str)
def test_a_cut_row_gets_the_same_bits_alone_and_beside_its_siblings(settings: dict[str, Any]) -> None:
    # One system prompt of more than a span that is shared by all, two prompts behind it, three siblings each; four
    # query heads to a key head, so that alone a row would fit the narrow tile.
    system = tuple(range(135))
    rows: list[Row] = []
    for prompt, position in ((150, 605), (170, 683)):
        shared = (*system, *range(prompt, prompt + (position // BLOCK - 2) - len(system)))
        first = 300 + 100 * len(rows)
        rows += [
            Row(i, 1, position, (*shared, *range(first + 3 * i, first + 3 * i + 3)), DRAW, cut=4 * len(shared))
            for i in range(3)
        ]
    case = Case(rows, 4, 1, span=256, **settings)
    work = case.listed(rows)
    assert work.items[:, 1].max() == 6
    together = case.run(work)[2]
    for i, row in enumerate(rows):
        assert torch.equal(case.run(case.listed([row]), [i])[2][0], together[i])
    free = [replace(row, cut=0) for row in rows]
    assert not torch.equal(case.run(case.listed(free))[2], together)


def test_parts_that_a_window_left_empty_do_not_change_a_bit() -> None:
    torch.manual_seed(2)
    partial, lse = torch.randn(40, 1, 16), torch.randn(40, 1)
    partial[:19], lse[:19] = 0, -torch.inf
    parts = torch.tensor([0, 40, 61, 75], dtype=torch.int32)
    part_slots = torch.cat([torch.arange(first, 40, dtype=torch.int32) for first in (0, 19, 26)])
    out = torch.empty(3, 16)
    unused = torch.empty(0, dtype=torch.int32)
    merge_parts(partial, lse, Work(unused, unused, unused, parts, part_slots, torch.tensor([0, 0, 3])), out)
    assert torch.equal(out[0], out[1])
    weights = lse[26:].double().softmax(0)
    torch.testing.assert_close(out[2].double(), (weights * partial[26:, 0].double()).sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [3, 24, 96])
def test_blocks_of_any_size(size: int) -> None:
    rows = [Row(i, 1, position, (0, 1, *range(2 + 40 * i, 42 + 40 * i)), DRAW) for i, position in enumerate((100, 97))]
    case = Case(rows)
    case.kv = torch.randn(4, 82 * size, case.dim)
    work = work_list(rows, plan_kv_spans(rows, size), Tables().step(rows), size, case.tiling())
    partial, lse = torch.empty(len(work.part_slots), 4, 16), torch.empty(len(work.part_slots), 4)
    attn_items(case.q, case.kv, case.tensors(work, 2), torch.empty(2), partial, lse, block_size=size, scale=SCALE)
    items = items_of(work, size)
    k, v = case.kv.double().chunk(2)
    expected = reference.attn_items(case.q.double(), k, v, items, size, SCALE)
    torch.testing.assert_close(partial.double(), expected[0], **CLOSE[torch.float32])


def test_buffers_longer_than_the_list_and_pools_full_of_what_is_no_number() -> None:
    rows = [Row(0, 1, 9, (0, 1, 2), DRAW), Row(1, 1, 66, tuple(range(3, 20)), DRAW)]
    case = Case(rows, spare=7)
    expected = case.run(case.listed(rows))[2]
    case.kv[:, 10:12] = torch.nan
    case.kv[:, 12 + 67 :] = torch.inf
    assert torch.equal(case.run(case.listed(rows))[2], expected)


def test_nothing_to_do() -> None:
    case = Case([Row(0, 1, 9, (0, 1, 2), DRAW)], spare=3)
    partial, lse, out = case.run(case.listed([]), [])
    assert [len(tensor) for tensor in (partial, lse, out)] == [0, 0, 0]


def test_scores_far_apart_neither_overflow_nor_vanish() -> None:
    case = Case([Row(0, 1, 150, tuple(range(38)), DRAW)], span=16)
    case.kv *= 60
    out = case.run(case.listed(case.rows))[2]
    torch.testing.assert_close(out.double(), case.whole(), rtol=1e-4, atol=1e-3)
