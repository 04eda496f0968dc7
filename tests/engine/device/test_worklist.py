"""A device's work list: what is covered, in which order, by which tile, and that a cut row's list is its own affair."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import Row
from engine.device.worklist import Tables, Tiling, WorkList, work_list
from engine.kv_spans import SPAN, plan_kv_spans
from tests.engine.forest import BLOCK, DRAW, forest_of


def listed(rows: list[Row], tiling: Tiling, gate: int = 0) -> WorkList:
    return work_list(rows, plan_kv_spans(rows, BLOCK, gate=gate), Tables().step(rows), BLOCK, tiling)


@dataclass(frozen=True, order=True)
class Part:
    """What an item is to one of its rows."""

    lo: int
    hi: int
    wide: int
    blocks: tuple[int, ...]


def parts_of(rows: list[Row], work: WorkList) -> list[list[Part]]:
    """By row, what its part_slots name, in their order."""
    by_slot: dict[int, tuple[int, Part]] = {}
    assert work.counts[:2].sum() == len(work.items)
    for number, (first, count, table, lo, hi, slot, row, nothing) in enumerate(work.items.tolist()):
        assert (row, nothing) == (work.rows[first], 0)
        wide = int(number < work.counts[0])
        blocks = tuple(work.blocks[table : table + -(-(hi - lo) // BLOCK)].tolist())
        for i, row in enumerate(work.rows[first : first + count].tolist()):
            assert slot + i not in by_slot, "two items write one partial result"
            by_slot[slot + i] = row, Part(lo, hi, wide, blocks)
    assert sorted(by_slot) == list(range(len(work.part_slots))), "slots are not dense"
    assert sorted(work.part_slots.tolist()) == sorted(by_slot), "a partial result is merged twice, or never"
    found: list[list[Part]] = []
    for row, (begin, end) in enumerate(pairwise(work.parts.tolist())):
        mine = [by_slot[slot] for slot in work.part_slots[begin:end].tolist()]
        assert {number for number, _ in mine} == {row}
        found.append([part for _, part in mine])
    assert len(found) == len(rows)
    return found


@given(
    seed=st.integers(0, 2**32),
    groups=st.integers(1, 16),
    depth=st.integers(0, 3),
    group=st.sampled_from([1, 2, 3, 4, 7, 8, 16]),
    span=st.sampled_from([4, 16, 64, 256]),
    fill=st.sampled_from([1, 10, 1000]),
    gate=st.sampled_from([0, 9, 40, 10**9]),
    cuts=st.booleans(),
)
def test_every_row_and_position_is_covered_once_in_order(
    seed: int, groups: int, depth: int, group: int, span: int, fill: int, gate: int, cuts: bool
) -> None:
    rows = forest_of(random.Random(seed), groups, depth, longest=60, cuts=cuts).rows
    work = listed(rows, Tiling(group, 64, 16, fill, span, shortest=4), gate)
    for row, parts in zip(rows, parts_of(rows, work), strict=True):
        assert parts[0].lo == 0
        assert parts[-1].hi == row.position + 1
        assert all(left.hi == right.lo for left, right in pairwise(parts))
        assert all(part.blocks == row.blocks[part.lo // BLOCK : -(-part.hi // BLOCK)] for part in parts)
        if fill == 1000 or cuts:
            assert all(part.lo // span == (part.hi - 1) // span for part in parts), "an item crosses a cut"
    for number, (first, count, _, lo, hi, _, _, _) in enumerate(work.items.tolist()):
        wide = number < work.counts[0]
        assert lo < hi
        assert 0 < count * group <= (64 if wide else 16)
        members = work.rows[first : first + count].tolist()
        if not cuts:
            continue
        for row in (rows[member] for member in members):
            assert row.cut >= hi or row.cut <= lo, "an item crosses a row's cut"
            assert wide == (row.cut > 0 and hi <= row.cut)
            assert count == 1 or wide


@given(seed=st.integers(0, 2**32), groups=st.integers(1, 4), gate=st.sampled_from([0, 700]))
def test_a_cut_rows_parts_are_the_same_in_any_company(seed: int, groups: int, gate: int) -> None:
    # System prompts of up to two spans, prompts behind them, siblings; some share, some go on where others end.
    rows = forest_of(random.Random(seed), groups, 2, longest=2 * SPAN, siblings=3, cuts=True).rows
    tiling = Tiling(4, 64, 16, fill=1000, shortest=4)
    together = parts_of(rows, listed(rows, tiling, gate))
    for row, parts in zip(rows, together, strict=True):
        assert parts_of([row], listed([row], tiling))[0] == parts


def test_siblings_share_up_to_their_cut_whoever_goes_on_behind_it() -> None:
    # Rows 0 and 1 end their prompt at 600; rows 2 and 3 have one of 700 that begins with it.
    shared = tuple(range(175))
    rows = [Row(i, 1, 601, (*shared[:150], 200 + i), DRAW, cut=600) for i in range(2)]
    rows += [Row(i, 1, 701, (*shared, 200 + i), DRAW, cut=700) for i in (2, 3)]
    assert list(plan_kv_spans(rows, BLOCK)) == [
        ((0, 1, 2, 3), 0, 512),
        ((0, 1), 512, 600),
        ((0,), 600, 602),
        ((1,), 600, 602),
        ((2, 3), 512, 700),
        ((2,), 700, 702),
        ((3,), 700, 702),
    ]


def test_nothing_is_shared_behind_a_cut_whatever_the_tables_say() -> None:
    rows = [Row(i, 1, 18, (0, 1, 2, 3, 10 + i), DRAW, cut=8) for i in range(2)]
    assert list(plan_kv_spans(rows, BLOCK)) == [((0, 1), 0, 8), ((0,), 8, 19), ((1,), 8, 19)]


def test_wide_where_the_rows_do_not_fit_the_narrow_tile() -> None:
    def shape(siblings: int, group: int) -> list[tuple[int, int, int]]:
        rows = [Row(i, 1, 40, (*range(10), 10 + i), DRAW) for i in range(siblings)]
        work = listed(rows, Tiling(group, 64, 16, fill=100))
        wide = work.counts[0]
        return sorted(
            (hi - lo, count, int(i < wide)) for i, (_, count, _, lo, hi, *_) in enumerate(work.items.tolist())
        )

    assert shape(4, 4) == [(1, 1, 0)] * 4 + [(40, 4, 0)]
    assert shape(5, 4) == [(1, 1, 0)] * 5 + [(40, 5, 1)]
    assert shape(17, 4) == [(1, 1, 0)] * 17 + [(40, 1, 1), (40, 16, 1)]
    assert shape(2, 16) == [(1, 1, 0)] * 2 + [(40, 2, 1)]
    assert shape(17, 1) == [(1, 1, 0)] * 17 + [(40, 17, 1)]


def test_a_long_list_of_wide_items_takes_more_spans_to_an_item() -> None:
    rows = [Row(i, 1, 4096, (*range(1024), 1024 + i), DRAW) for i in range(32)]  # two items to a span, of 16 rows each

    def wide(fill: int, cut: int = 0) -> set[int]:
        work = listed([replace(row, cut=cut) for row in rows], Tiling(4, 64, 16, fill))
        return {hi - lo for _, _, _, lo, hi, *_ in work.items[: work.counts[0]].tolist()}

    assert wide(17) == {256}
    assert wide(16) == {512}
    assert wide(8) == {1024}
    assert wide(8, cut=4096) == {256}


def test_a_short_list_of_shared_items_takes_less_than_a_span_to_an_item() -> None:
    def wide(fill: int, shortest: int, siblings: int = 8, cut: int = 0) -> list[int]:
        rows = [
            Row(i, 1, 600, (*range(128), *range(200 + 30 * i, 223 + 30 * i)), DRAW, cut=cut) for i in range(siblings)
        ]
        items = listed(rows, Tiling(4, 64, 16, fill, shortest=shortest)).items
        return sorted({hi - lo for _, count, _, lo, hi, *_ in items.tolist() if count > 1})

    assert wide(3, 64) == [256]
    assert wide(4, 64) == [128]
    assert wide(8, 64) == wide(1000, 64) == [64]
    assert wide(1000, 16) == [16]  # 32 items
    assert wide(1000, 128) == [128]
    assert wide(1000, 64, cut=512) == [256]

    alone = [Row(i, 1, 600, tuple(range(1000 * i, 1000 * i + 151)), DRAW) for i in range(2)]
    items = listed(alone, Tiling(4, 64, 16, 1000, shortest=4)).items
    assert {hi - lo for _, _, _, lo, hi, *_ in items.tolist()} == {256, 89}


def test_a_row_by_itself_keeps_its_spans_where_it_is_wide_too() -> None:
    # Deterministic mode, a prompt shorter than a block: no cut, and 71 query heads to a key head.
    alone = Row(0, 1, 2047, tuple(range(512)), DRAW)
    company = [alone, *[Row(i, 1, 2047, tuple(range(i * 1000, i * 1000 + 512)), DRAW) for i in range(1, 9)]]
    tiling = Tiling(71, 128, 64, fill=4)
    assert parts_of(company, listed(company, tiling))[0] == parts_of([alone], listed([alone], tiling))[0]


def test_the_wide_items_come_first_and_of_either_kind_the_longest() -> None:
    rows = forest_of(random.Random(4), 6, 1, longest=150, siblings=8).rows
    work = listed(rows, Tiling(8, 64, 16, 100, 64))
    wide, narrow, total = work.counts.tolist()
    assert min(wide, narrow) > 0
    assert total == len(rows)
    lengths = [hi - lo for _, _, _, lo, hi, *_ in work.items.tolist()]
    assert lengths == sorted(lengths[:wide], reverse=True) + sorted(lengths[wide:], reverse=True)


def test_no_rows() -> None:
    work = listed([], Tiling(1, 64, 16, 1))
    assert [len(array) for array in (work.items, work.rows, work.blocks, work.part_slots)] == [0, 0, 0, 0]
    assert work.items.shape == (0, 8)
    assert work.parts.tolist() == [0]
    assert work.counts.tolist() == [0, 0, 0]


def test_a_table_becomes_an_array_once_for_as_long_as_it_is_used() -> None:
    tables = Tables()
    rows = [Row(i, 1, 7, (2 * i, 2 * i + 1), DRAW) for i in range(3)]
    first = tables.step(rows)
    assert all(array.dtype == np.int32 for array in first)
    grown = [rows[0], replace(rows[1], position=8, blocks=(2, 3, 9))]
    second = tables.step(grown)
    assert second[0] is first[0]
    assert [array.tolist() for array in second] == [[0, 1], [2, 3, 9]]
    assert len(tables._known) == 2
