"""The work list over fork trees: coverage, order, slots, sharing, the gate, and the counts."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.batch import Draw, Row
from engine.kv_spans import Item, Reads, count_reads, cut_items, plan_kv_spans
from engine.messages import Sampling

BLOCK = 4


def row(number: int, position: int, blocks: tuple[int, ...]) -> Row:
    return Row(number, 7, position, blocks, Draw(number, 0, position + 1, Sampling()))


def plan(rows: list[Row], span: int = 512, gate: int = 0) -> tuple[Item, ...]:
    """The rows' work list as a CPU reads it."""
    return cut_items(rows, plan_kv_spans(rows, BLOCK, gate=gate), BLOCK, span=span)


class Forest:
    """Block tables as forking makes them: a node's blocks follow its parent's, every block is new."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.blocks = 0

    def fresh(self, count: int) -> tuple[int, ...]:
        self.blocks += count
        return tuple(range(self.blocks - count, self.blocks))

    def grow(self, table: tuple[int, ...], depth: int) -> list[tuple[int, ...]]:
        if depth == 0 or self.random.random() < 0.2:
            return [table + self.fresh(self.random.randint(1, 4))]
        stem = table + self.fresh(self.random.choice([0, 0, 1, 3, 9]))
        return [leaf for _ in range(self.random.randint(1, 4)) for leaf in self.grow(stem, depth - 1)]

    def rows(self, groups: int, depth: int) -> list[Row]:
        tables = [table for _ in range(groups) for table in self.grow((), depth)]
        self.random.shuffle(tables)
        return [
            row(number, len(table) * BLOCK - 1 - self.random.randrange(BLOCK), table)
            for number, table in enumerate(tables)
        ]


def check(rows: list[Row], items: tuple[Item, ...], span: int) -> None:
    slots: list[int] = []
    covered: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for item in items:
        assert item.lo < item.hi
        assert item.lo % BLOCK == 0
        assert item.lo // span == (item.hi - 1) // span, "an item crosses a cut"
        assert item.hi % BLOCK == 0 or len(item.rows) == 1
        slots.extend(item.slot + offset for offset in range(len(item.rows)))
        for member in item.rows:
            first = item.lo // BLOCK
            assert item.blocks == rows[member].blocks[first : first + len(item.blocks)]
            assert len(item.blocks) == -(-item.hi // BLOCK) - first
            covered[member].append((item.lo, item.hi))
    assert slots == list(range(len(slots))), "slots are not dense"
    for number, one in enumerate(rows):
        spans = covered[number]
        assert spans[0][0] == 0
        assert spans[-1][1] == one.position + 1
        assert all(left[1] == right[0] for left, right in pairwise(spans))


@given(
    seed=st.integers(0, 2**32),
    groups=st.integers(1, 4),
    depth=st.integers(0, 4),
    span=st.sampled_from([4, 8, 20, 512]),
    gate=st.sampled_from([0, 1, 9, 40, 10**9]),
)
def test_every_row_and_position_is_covered_once_in_order(
    seed: int, groups: int, depth: int, span: int, gate: int
) -> None:
    rows = Forest(seed).rows(groups, depth)
    items = plan(rows, span=span, gate=gate)
    check(rows, items, span)
    assert all((len(item.rows) - 1) * BLOCK * len(rows[item.rows[0]].blocks) >= gate for item in items if gate > 1
               and len(item.rows) > 1)  # fmt: skip


@given(seed=st.integers(0, 2**32), groups=st.integers(1, 4), depth=st.integers(0, 4))
def test_without_a_gate_no_block_is_read_twice(seed: int, groups: int, depth: int) -> None:
    rows = Forest(seed).rows(groups, depth)
    read = [block for item in plan(rows) for block in item.blocks]
    assert len(read) == len(set(read))
    in_past = {block for one in rows for block in one.blocks[: one.position // BLOCK + 1]}
    assert set(read) == in_past


def test_no_rows_no_items() -> None:
    assert plan([]) == ()


def test_a_system_prompt_above_two_forks() -> None:
    system, left, right = (0, 1), (2, 3, 4), (5,)
    rows = [
        row(0, 21, (*system, *left, 10)),
        row(1, 22, (*system, *left, 11)),
        row(2, 14, (*system, *right, 12)),
        row(3, 12, (*system, *right, 13)),
    ]
    assert plan(rows, span=16) == (
        Item((0, 1, 2, 3), (0, 1), 0, 8, 0),
        Item((0, 1), (2, 3), 8, 16, 4),
        Item((0, 1), (4,), 16, 20, 6),
        Item((0,), (10,), 20, 22, 8),
        Item((1,), (11,), 20, 23, 9),
        Item((2, 3), (5,), 8, 12, 10),
        Item((2,), (12,), 12, 15, 12),
        Item((3,), (13,), 12, 13, 13),
    )


def test_the_gate_leaves_short_prefixes_to_the_rows_own_items() -> None:
    rows = [row(number, 9, (0, 1, 2 + number)) for number in range(3)]
    assert plan(rows, gate=16)[0] == Item((0, 1, 2), (0, 1), 0, 8, 0)  # (3 - 1) * 8 tokens saved
    assert plan(rows, gate=17) == tuple(Item((number,), (0, 1, 2 + number), 0, 10, number) for number in range(3))


def test_a_stretch_below_the_gate_is_shared_together_with_what_follows() -> None:
    # Four rows share block 0 (12 tokens saved); below it rows 0 and 1 share three more.
    rows = [row(0, 17, (0, 1, 2, 3, 4)), row(1, 17, (0, 1, 2, 3, 5)), row(2, 5, (0, 6)), row(3, 5, (0, 7))]
    items = plan(rows, gate=16)
    assert items[0] == Item((0, 1), (0, 1, 2, 3), 0, 16, 0)
    check(rows, items, 512)


def test_the_block_a_row_writes_to_is_never_shared() -> None:
    # After a fork and before the first write both tables name the same last block; each row still writes there.
    rows = [row(0, 8, (0, 1, 2)), row(1, 8, (0, 1, 2))]
    assert [item.rows for item in plan(rows)] == [(0, 1), (0,), (1,)]


def test_the_cuts_do_not_depend_on_the_company() -> None:
    table = tuple(range(400))
    alone = plan([row(0, 1599, table)])
    beside = plan([row(0, 1599, table), row(1, 30, tuple(range(400, 408)))])
    assert [(item.lo, item.hi) for item in alone] == [(0, 512), (512, 1024), (1024, 1536), (1536, 1600)]
    assert alone == tuple(item for item in beside if item.rows == (0,))


def test_what_is_read_is_counted() -> None:
    rows = [row(number, 10, (0, 1, 2 + number)) for number in range(3)]
    assert count_reads(rows, plan_kv_spans(rows, BLOCK)) == Reads(items=8 + 3 * 3, shared=8, unshared=33)
    assert count_reads(rows, plan_kv_spans(rows, BLOCK, gate=10**6)) == Reads(items=33, shared=0, unshared=33)
