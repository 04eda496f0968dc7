"""What a batch takes over from the one before it is what planning anew would have given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from engine.batch import Batch, KvSpan, Row
from engine.kv_spans import continue_kv_spans, plan_kv_spans
from engine.scheduler import Scheduler
from tests.engine.test_random_walk import Walk


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """All batches of the schedulers in a test, each compared with a plan made anew."""
    seen: list[Batch] = []
    schedule = Scheduler.schedule

    def scheduled(self: Scheduler) -> Batch:
        batch = schedule(self)
        assert batch.kv_spans == plan_kv_spans(batch.rows, self.pool.block_size, gate=self._gate)
        if batch.continues:
            before = next(one for one in reversed(seen) if one.rows or one.chunks)
            assert batch.number == before.number + 1
            assert not batch.chunks
            assert not batch.copies
            for row, old in zip(batch.rows, before.rows, strict=True):
                assert (row.sequence, row.position) == (old.sequence, old.position + 1)
                assert row.blocks[: len(old.blocks)] == old.blocks
        seen.append(batch)
        return batch

    monkeypatch.setattr(Scheduler, "schedule", scheduled)
    return seen


@pytest.mark.parametrize("early", [None, lambda _: False], ids=["one at a time", "overlapping"])
@pytest.mark.parametrize("cache", [False, True])
def test_random_traffic(batches: list[Batch], cache: bool, early: Callable[[int], bool] | None) -> None:
    Walk(cache=cache, seed=5, early=early).go(120)
    assert Counter(batch.continues for batch in batches)[True] > 50


BLOCKS = (0, 1, 2)
BEFORE = Batch(rows=(Row(5, 1, 9, BLOCKS, None), Row(6, 1, 9, (0, 1, 3), None)), kv_spans=())


def _after(position: int = 10, sequence: int = 6, blocks: tuple[int, ...] | None = None) -> tuple[Row, ...]:
    return Row(5, 1, 10, BLOCKS, None), Row(sequence, 1, position, blocks or BEFORE.rows[1].blocks, None)


def test_only_the_span_with_the_newest_position_grows() -> None:
    spans = KvSpan((0, 1), 0, 8), KvSpan((0,), 8, 10), KvSpan((1,), 8, 10)
    before = Batch(rows=BEFORE.rows, kv_spans=spans)
    assert spans == plan_kv_spans(before.rows, 4)
    assert continue_kv_spans(before, _after(), 4) == (spans[0], KvSpan((0,), 8, 11), KvSpan((1,), 8, 11))


def test_a_cut_in_the_block_before_stays() -> None:
    rows = (Row(1, None, 9, BLOCKS, None, cut=8),)
    before = Batch(rows=rows, kv_spans=plan_kv_spans(rows, 4))
    assert continue_kv_spans(before, (Row(1, None, 10, BLOCKS, None, cut=8),), 4) == (
        KvSpan((0,), 0, 8),
        KvSpan((0,), 8, 11),
    )


@pytest.mark.parametrize(
    "rows",
    [
        _after()[:1],
        _after()[::-1],
        _after(sequence=7),
        _after(position=11),
        _after(blocks=(0, 1, 4)),
        (),
    ],
    ids=["one has ended", "another order", "another sequence", "two further", "other blocks", "none"],
)
def test_other_rows_do_not_continue(rows: tuple[Row, ...]) -> None:
    assert continue_kv_spans(BEFORE, rows, 4) is None


def test_a_block_that_begins_belongs_to_the_last_span() -> None:
    rows = Row(5, 1, 7, (0, 1), None), Row(6, 1, 6, (0, 2), None)
    before = Batch(rows=rows, kv_spans=plan_kv_spans(rows, 4))
    assert before.kv_spans == (KvSpan((0, 1), 0, 4), KvSpan((0,), 4, 8), KvSpan((1,), 4, 7))
    after = Row(5, 1, 8, (0, 1, 3), None), Row(6, 1, 7, (0, 2), None)
    assert continue_kv_spans(before, after, 4) == plan_kv_spans(after, 4)


def test_a_table_that_grows_within_a_block_is_another_one() -> None:
    assert continue_kv_spans(BEFORE, _after(blocks=(0, 1, 3, 4)), 4) is None
