"""A step in parts: what each pass holds, and that shapes of attention are a row's own."""

from __future__ import annotations

import random

import pytest

from engine.attention.buckets import buckets_of_fixed_shapes
from engine.attention.plan import within_window
from engine.batch import Batch, Chunk, Draw, Row
from engine.kv_spans import SPAN, cut_items, plan_kv_spans
from engine.messages import Sampling
from engine.passes import Pass, passes, rows_per_pass

SIZE = 16


def row(number: int, position: int, *, first: int = 0, cut: int = 0, adapter: str | None = None) -> Row:
    """A row whose table is its own behind its cut."""
    own = range(first + 1000 * (number + 1), first + 1000 * (number + 1) + position // SIZE + 1 - cut // SIZE)
    table = (*range(first, first + cut // SIZE), *own)
    return Row(number, 5, position, table, Draw(number, number, position + 1, Sampling()), adapter, cut)


def batch(*rows: Row, chunks: tuple[Chunk, ...] = ()) -> Batch:
    return Batch(chunks=chunks, rows=rows, kv_spans=plan_kv_spans(rows, SIZE))


@pytest.mark.parametrize(("sequences", "rows"), [(1, 1), (2, 2), (3, 4), (17, 32), (32, 32), (256, 32)])
def test_rows_at_a_time(sequences: int, rows: int) -> None:
    assert rows_per_pass(sequences, 32) == rows


def test_by_default_a_step_is_one_pass() -> None:
    step = batch(row(0, 40), row(1, 9), chunks=(Chunk(7, (1, 2), 0, (3,)),))
    assert passes(step, None) == [Pass(step, step.rows)]


def test_each_chunk_is_a_pass_and_rows_are_filled_up() -> None:
    rows = [row(number, 40 + number, cut=32) for number in range(5)]
    chunks = (Chunk(7, (1, 2), 0, (3,)), Chunk(8, (1,), 0, (4,)))
    parts = passes(batch(*rows, chunks=chunks), 4)
    assert [part.batch.chunks for part in parts] == [chunks[:1], chunks[1:], (), ()]
    assert [part.batch.rows for part in parts] == [(), (), tuple(rows[:4]), tuple(rows[4:])]
    assert [part.rows for part in parts[2:]] == [tuple(rows[:4]), (rows[4],) * 4]
    for part in parts[2:]:
        seen = [0] * len(part.batch.rows)
        for members, lo, hi in part.batch.kv_spans:
            for member in members:
                assert lo == seen[member]
                seen[member] = hi
        assert seen == [one.position + 1 for one in part.batch.rows]
    assert len(parts[2].batch.kv_spans[0].rows) == 4


def test_adapters_run_apart() -> None:
    rows = [row(number, 20, adapter=name) for number, name in enumerate(["a", None, "a", "b", None])]
    parts = passes(batch(*rows), 4)
    assert [[one.sequence for one in part.batch.rows] for part in parts] == [[0, 2], [1, 4], [3]]
    assert [{one.adapter for one in part.rows} for part in parts] == [{"a"}, {None}, {"b"}]


def company(rng: random.Random) -> list[Row]:
    """Rows of a few prompts, some of which begin alike."""
    rows: list[Row] = []
    for group in range(rng.randrange(1, 5)):
        cut = rng.randrange(120) * SIZE
        first = rng.choice([0, 10_000 * group])
        for _ in range(rng.randrange(1, 12)):
            rows.append(row(len(rows), cut + rng.randrange(300), first=first, cut=cut))
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_the_shapes_of_a_rows_attention_are_its_own(seed: int) -> None:
    rng = random.Random(seed)
    rows, window = company(rng), rng.choice([None, 100, 700])
    together = shapes(rows, window, gate=rng.choice([0, 64, 5000]))
    for number, one in enumerate(rows):
        assert together[number] == shapes([one], window)[0]


def shapes(rows: list[Row], window: int | None, gate: int = 0) -> list[list[tuple[int, int, int, int]]]:
    """Per row: the spans it is computed by, in order, each with the width and length that it is filled up to."""
    items = cut_items(rows, plan_kv_spans(rows, SIZE, gate=gate), SIZE, span=SPAN // 2)
    if window is not None:
        items = within_window(rows, items, SIZE, window, whole=True)
    found: list[list[tuple[int, int, int, int]]] = [[] for _ in rows]
    for group in buckets_of_fixed_shapes(rows, items, SIZE):
        for item in group.items:
            assert len(item.rows) <= group.width
            assert len(item.blocks) <= group.span
            for member in item.rows:
                found[member].append((item.lo, item.hi, group.width, group.span))
    return [sorted(mine) for mine in found]
