"""What the device is told of a step's tokens; how far windows look; the largest step."""

from __future__ import annotations

from dataclasses import replace

from engine.batch import Batch, Chunk, Draw, KvSpan, Row
from engine.config import EngineConfig
from engine.device.attention import within_window
from engine.device.memory import largest_batch
from engine.device.packing import pack_chunks, pack_tokens
from engine.kv_spans import plan_kv_spans
from engine.messages import Sampling
from engine.token_layout import adapted, chunks_at, drawn_from, wanted


def draw(sequence: int) -> Draw:
    return Draw(sequence, 0, 1, Sampling())


def row(sequence: int, token: int | None, position: int, blocks: tuple[int, ...], adapter: str | None = None) -> Row:
    return Row(sequence, token, position, blocks, draw(sequence), adapter)


STEP = Batch(
    chunks=(
        Chunk(1, (11, 12, 13), 4, (5, 6), (), (12, 13, 14)),
        Chunk(2, (21,), 0, (7,), (draw(2), draw(3)), adapter="a"),
    ),
    rows=(row(4, 41, 5, (8, 9), "a"), row(5, None, 3, (2,))),
)


def test_tokens_in_one_line() -> None:
    packed = {name: array.tolist() for name, array in pack_tokens(STEP, 4, {5: 6}, 3).items()}
    assert packed == {
        "tokens": [11, 12, 13, 21, 41, 0, 0],
        "sources": [-1, -1, -1, -1, -1, 6, -1],
        "positions": [4, 5, 6, 0, 5, 3, 0],
        "slots": [24, 25, 26, 28, 37, 11, -1],
        "row_positions": [5, 3, 0],
    }
    assert [begin for _, begin in chunks_at(STEP)] == [0, 3]
    assert adapted(STEP) == {"a": [3, 4]}


def test_who_draws_from_which_token() -> None:
    sources, which = drawn_from(STEP)
    assert (sources, which) == ([3, 4, 5], [0, 0, 1, 2])
    packed = {name: array.tolist() for name, array in pack_chunks(STEP, sources).items()}
    assert packed == {"drawn_from": [3, 4, 5], "followers": [12, 13, 14]}


def test_after_which_tokens_something_is_asked_for() -> None:
    """Log probabilities after each token but a prompt's last, a draw after a prompt, one hidden state or all; rows
    always, also one that draws nothing.
    """
    middle = Chunk(0, (1, 2, 3), 0, (1,))
    end = Chunk(1, (11, 12, 13), 4, (5, 6), (draw(1),), last=True)
    rows = (row(4, 41, 5, (8, 9)), Row(5, 51, 3, (2,), None))
    assert wanted(Batch(chunks=(middle,))) == []
    assert wanted(Batch(chunks=(middle, end), rows=rows)) == [5, 6, 7]
    assert wanted(Batch(chunks=(end, middle))) == [2]
    assert wanted(Batch(chunks=(replace(middle, next_tokens=(2, 3)), end))) == [0, 1, 5]
    assert wanted(Batch(chunks=(replace(end, next_tokens=(12, 13)), middle))) == [0, 1, 2]
    assert wanted(Batch(chunks=(replace(middle, next_tokens=(2, 3, 4)), middle))) == [0, 1, 2]
    assert wanted(Batch(chunks=(middle, replace(middle, pooling="mean")))) == [3, 4, 5]
    assert wanted(Batch(chunks=(replace(middle, pooling="last"), replace(end, draws=(), pooling="last")))) == [5]
    assert wanted(Batch(rows=rows)) is None
    assert wanted(Batch(chunks=(replace(middle, pooling="mean"),), rows=rows)) is None


def test_windows_leave_out_whole_spans_and_rows_that_see_nothing() -> None:
    rows = [row(1, 1, 1999, tuple(range(125))), row(2, 1, 1100, tuple(range(125)))]
    shared, own = KvSpan((0, 1), 0, 1040), (KvSpan((0,), 1040, 2000), KvSpan((1,), 1040, 1101))
    assert within_window(rows, (shared, *own), 16, 600) == (KvSpan((1,), 0, 1040), *own)
    assert within_window(rows, (shared, *own), 16, 500) == (KvSpan((1,), 512, 1040), KvSpan((0,), 1040, 2000), own[1])
    assert within_window(rows, (shared, *own), 16, 10) == (KvSpan((0,), 1536, 2000), own[1])
    assert within_window(rows, (shared, *own), 16, 5000) == (shared, *own)


def test_the_largest_step_runs_all_that_may_run() -> None:
    config = EngineConfig("m", max_sequences=6, max_batch_tokens=50, block_size=4)
    batch = largest_batch(config, context=30)
    assert [len(chunk.tokens) for chunk in batch.chunks] == [30, 14]
    assert len(batch.draws) == len(batch.rows) == 6
    tables = [*(chunk.blocks for chunk in batch.chunks), *(row.blocks for row in batch.rows)]
    blocks = [block for table in tables for block in table]
    assert sorted(blocks) == list(range(6 + 8 + 4))
    assert batch.kv_spans == plan_kv_spans(batch.rows, 4)
