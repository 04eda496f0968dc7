"""Attention of decoding rows in C against the plain reference: random fork trees, windows, chunks beside rows."""

from __future__ import annotations

import random

import pytest
import torch

from engine.attention.cache import KvCache
from engine.attention.compute import Attention
from engine.attention.plan import begun_blocks
from engine.batch import Batch, Chunk, Row
from engine.kernels import reference
from engine.kv_spans import Item, plan_kv_spans
from engine.models.ops import Heads
from engine.models.spec import AttentionSpec
from engine.native.attention import NativeAttention, fits
from engine.native.build import load_kernels
from engine.native.ops import NativeOps
from tests.engine.forest import BLOCK, DRAW, forest_of

pytestmark = pytest.mark.usefixtures("_processor")

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
BOTH = pytest.mark.parametrize("dtype", BOUNDS, ids=["float32", "bfloat16"])
DIMS = pytest.mark.parametrize("dim", [16, 64, 96])  # AMX multiplies heads of whole tiles


def spec_of(heads: int, kv_heads: int, dim: int = 16, window: int | None = None) -> AttentionSpec:
    return AttentionSpec(heads, kv_heads, dim, scale=1.2 * dim**-0.5, window=window)


class Case:
    """A cache filled with random numbers, and the queries, keys and values of some tokens in two equal layers."""

    def __init__(
        self,
        spec: AttentionSpec,
        blocks: int,
        tokens: int,
        dtype: torch.dtype,
        span: int = 256,
        size: int = BLOCK,
        *,
        deterministic: bool = False,
    ) -> None:
        torch.manual_seed(5)
        self.spec = spec
        self.cache = KvCache([spec, spec], blocks, size, dtype)
        self.cache.pools[0].copy_(torch.randn(self.cache.pools[0].shape))
        self.attention = NativeAttention(
            [spec, spec], self.cache, load_kernels(dtype), span, deterministic=deterministic
        )
        self.qkv = torch.randn(tokens, spec.heads + 2 * spec.kv_heads, spec.head_dim).to(dtype) * 2

    def run(self, batch: Batch, layer: int = 1) -> torch.Tensor:
        """Return the output, [T, Q, D], of the backend's own `heads`."""
        turns = torch.zeros(0, dtype=torch.complex64)
        backend = NativeOps(
            load_kernels(self.cache.dtype), None, self.attention, self.cache, self.attention.plan(batch), turns
        )
        out = backend.heads(layer, self.qkv.flatten(1).clone(), Heads(self.spec, None, None, 0.0, rotated=False))
        return out.view(len(self.qkv), self.spec.heads, -1)

    def whole(self, rows: tuple[Row, ...], layer: int = 1) -> torch.Tensor:
        """Return the attention of each row over its whole past in one piece, [R, Q, D] in float64."""
        data = self.cache.pools[0][layer].double()
        keys, values = data[: self.spec.kv_heads], data[self.spec.kv_heads :]
        out = []
        for number, row in enumerate(rows):
            q = self.qkv[number : number + 1, : self.spec.heads].double()
            slots = reference.span_slots(row.blocks, 0, row.position + 1, self.cache.block_size)
            scale, window = self.spec.scale, self.spec.window
            out.append(reference.prefill_attn(q, keys, values, slots, row.position, scale, window=window)[0])
        return torch.stack(out)


@BOTH
@pytest.mark.parametrize("seed", range(24))
def test_random_fork_trees(seed: int, dtype: torch.dtype) -> None:
    """Groups of 1 to 48 queries per key head, head sizes of 16 to 256, items of 8 to 256 keys."""
    chance = random.Random(seed)
    forest = forest_of(
        chance, groups=chance.randrange(1, 7), depth=chance.randrange(0, 4), longest=chance.choice([40, 300])
    )
    kv_heads = chance.randrange(1, 4)
    group = chance.choice([1, 2, 3, 4, 5, 8, 16, 17, 32, 33, 48])
    dim = chance.choice([16, 32, 48, 64, 80, 96, 128, 256])
    rows = tuple(forest.rows)
    case = Case(spec_of(kv_heads * group, kv_heads, dim), forest.blocks, len(rows), dtype, chance.choice([8, 64, 256]))
    out = case.run(Batch(rows=rows, kv_spans=plan_kv_spans(rows, BLOCK, gate=chance.choice([0, 20]))))
    torch.testing.assert_close(out.double(), case.whole(rows), rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


@BOTH
@DIMS
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 16, 32])
@pytest.mark.parametrize("heads", [2, 8, 20])
def test_blocks_of_any_size_anywhere(size: int, heads: int, dim: int, dtype: torch.dtype) -> None:
    """Some blocks are consecutive in the cache and some are not; the kernel handles a few keys at a time."""
    chance = random.Random(size)
    count = -(-100 // size)
    for swaps in (0, 1, 2, count):
        table = list(range(count))
        for _ in range(swaps):
            a, b = chance.randrange(count), chance.randrange(count)
            table[a], table[b] = table[b], table[a]
        row = Row(0, 1, 99, tuple(table), DRAW)
        case = Case(spec_of(heads, 1, dim), count, 1, dtype, size=size)
        out = case.run(Batch(rows=(row,), kv_spans=plan_kv_spans([row], size)))
        torch.testing.assert_close(out.double(), case.whole((row,)), rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


@BOTH
@DIMS
@pytest.mark.parametrize("heads", [2, 8, 20])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", ["key", "value", "query"])
def test_what_is_no_number_stays_none(heads: int, dim: int, number: float, where: str, dtype: torch.dtype) -> None:
    """A choice whose scores are not finite must end with an error, not with some token."""
    row = Row(0, 1, 99, tuple(range(25)), DRAW)
    case = Case(spec_of(heads, 1, dim), 25, 1, dtype)
    match where:
        case "key":
            case.cache.pools[0][1, 0, 70] = number
        case "value":
            case.cache.pools[0][1, 1, 70] = number
        case "query":
            case.qkv[0, :heads] = number
    out = case.run(Batch(rows=(row,), kv_spans=plan_kv_spans([row], BLOCK)))
    assert not out.isfinite().any()


@BOTH
@DIMS
@pytest.mark.parametrize("heads", [2, 8, 20])
@pytest.mark.parametrize("first", range(4))
def test_rows_beside_one_that_is_no_number_are_as_they_were(
    first: int, heads: int, dim: int, dtype: torch.dtype
) -> None:
    """The rows read the same keys together, and one of them has a query of NaN."""
    rows = tuple(Row(i, 1, 99, tuple(range(25)), DRAW) for i in range(4))
    case = Case(spec_of(heads, 1, dim), 25, len(rows), dtype)
    case.qkv[first, :heads] = torch.nan
    out = case.run(Batch(rows=rows, kv_spans=plan_kv_spans(rows, BLOCK)))
    others = [i for i in range(4) if i != first]
    assert not out[first].isfinite().any()
    torch.testing.assert_close(out[others].double(), case.whole(rows)[others], rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


@BOTH
@DIMS
@pytest.mark.parametrize("step", [0.01, 0.1, 0.13, 0.3, -0.1, -0.3])
@pytest.mark.parametrize("heads", [2, 8, 20])
def test_scores_that_grow(heads: int, dim: int, step: float, dtype: torch.dtype) -> None:
    """Scores grow from key to key, so that the running maximum lags by little, by exactly its limit, and by more."""
    row = Row(0, 1, 399, tuple(range(100)), DRAW)
    case = Case(spec_of(heads, 1, dim), 100, 1, dtype)
    case.qkv[0, :heads, 0] = 1 / case.spec.scale
    case.cache.pools[0][1, 0, :, 0] = step * torch.arange(400)
    out = case.run(Batch(rows=(row,), kv_spans=plan_kv_spans([row], BLOCK)))
    torch.testing.assert_close(
        out.double(), case.whole((row,)), rtol=max(1e-4, BOUNDS[dtype]), atol=max(1e-4, BOUNDS[dtype])
    )


@DIMS
@pytest.mark.parametrize("keys", [1, 2, 3, 5, 64, 65, 130])
@pytest.mark.parametrize("heads", [2, 8, 20])
def test_what_a_query_gets_lies_between_the_values_that_it_sees(heads: int, dim: int, keys: int) -> None:
    """If all values are the same number, the output is that number, however the weights are rounded."""
    table = tuple(range(-(-keys // BLOCK)))
    rows = tuple(Row(i, 1, keys - 1, table, DRAW) for i in range(20))
    case = Case(spec_of(heads, 1, dim), len(table), len(rows), torch.bfloat16)
    values = case.cache.pools[0][1, 1]
    values[:] = 2 - 2**-7  # its neighbours in bfloat16 are relatively as close as possible
    case.qkv[:, -1] = values[0]
    out = case.run(Batch(rows=rows, kv_spans=plan_kv_spans(rows, BLOCK)))
    assert torch.equal(out, values[0].expand_as(out))


@pytest.mark.parametrize("heads", [2, 8, 20])
def test_what_is_rounded_off_depends_on_no_company(heads: int) -> None:
    """A choice beside others equals the choice alone, but for the rounding of sums in another order."""
    table = tuple(range(80))
    rows = tuple(Row(i, 1, 4 * len(table) - 1, table, DRAW) for i in range(20))

    def run(span: int, *numbers: int) -> torch.Tensor:
        case = Case(spec_of(heads, 1, 64), len(table), len(rows), torch.bfloat16, span)
        case.qkv[:, heads:] = case.qkv[0, heads:]  # they share the last key too
        case.qkv = case.qkv[list(numbers)]
        some = tuple(rows[number] for number in numbers)
        return case.run(Batch(rows=some, kv_spans=plan_kv_spans(some, BLOCK)))

    together = run(256, *range(20))
    for other in (run(64, *range(20)), torch.cat([run(256, number) for number in range(20)])):
        assert (other != together).double().mean() < 0.01


@BOTH
@pytest.mark.parametrize("heads", [1, 2, 5, 8])
@pytest.mark.parametrize("window", [None, 5, 64, 90])
@pytest.mark.parametrize("loud", [1, 12], ids=["even", "of some keys only"])
def test_in_deterministic_mode_a_row_is_the_same_in_any_company(
    heads: int, window: int | None, loud: float, dtype: torch.dtype
) -> None:
    """Bit for bit: alone, beside all others, beside half of them.

    loud: scores grow so much at some keys, which differ between queries, that sums are scaled down.
    """
    chance = random.Random(heads)
    forest = forest_of(chance, groups=3, depth=2, longest=300, cuts=True)
    rows = tuple(forest.rows)
    spec = spec_of(2 * heads, 2, 32, window)
    case = Case(spec, forest.blocks, len(rows), dtype, deterministic=True)
    case.cache.pools[0][1, :2, 70::97] *= loud
    queries, stored = case.qkv, case.cache.pools[0].clone()

    def run(*numbers: int) -> torch.Tensor:
        case.cache.pools[0].copy_(stored)
        case.qkv = queries[list(numbers)]
        some = tuple(rows[number] for number in numbers)
        return case.run(Batch(rows=some, kv_spans=plan_kv_spans(some, BLOCK)))

    together = run(*range(len(rows)))
    assert torch.equal(together, torch.cat([run(number) for number in range(len(rows))]))
    half = chance.sample(range(len(rows)), len(rows) // 2)
    assert torch.equal(together[half], run(*half))


@BOTH
def test_in_deterministic_mode_nobody_is_scaled_down_for_others(dtype: torch.dtype) -> None:
    """Every second row's scores grow by twelve with each 64 keys. The others' grow by two and a half, too little to be
    scaled down. If they were, one of ten thousand of their weights would be rounded in another way: there are enough.
    """
    shared, spec = 1024, spec_of(16, 8, 64)
    rows = tuple(Row(i, 1, shared, (*range(shared // BLOCK), shared // BLOCK + i), DRAW, cut=shared) for i in range(48))
    case = Case(spec, shared // BLOCK + len(rows), len(rows), dtype, deterministic=True)
    later = torch.arange(shared) // 64 % 4  # how many 64 keys come before in their item
    case.cache.pools[0][1, : spec.kv_heads, :shared, 0] = 10 * later
    case.cache.pools[0][1, : spec.kv_heads, :shared, 1] = 4 * later.clamp(max=1)
    case.qkv[:, : spec.heads, 0] = (torch.arange(len(rows)) % 2 * 8).unsqueeze(1)
    case.qkv[:, : spec.heads, 1] = 4
    together, queries = case.run(Batch(rows=rows, kv_spans=plan_kv_spans(rows, BLOCK))), case.qkv
    for number, row in list(enumerate(rows))[::2]:
        case.qkv = queries[number : number + 1]
        alone = case.run(Batch(rows=(row,), kv_spans=plan_kv_spans([row], BLOCK)))
        assert torch.equal(alone[0], together[number])


@BOTH
@pytest.mark.parametrize("window", [1, 3, 8, 17, 64])
@pytest.mark.parametrize("group", [1, 3, 8])
def test_windows(window: int, group: int, dtype: torch.dtype) -> None:
    chance = random.Random(window + group)
    rows = tuple(forest_of(chance, groups=4, depth=2).rows)
    blocks = max(block for row in rows for block in row.blocks) + 1
    case = Case(spec_of(2 * group, 2, window=window), blocks, len(rows), dtype)
    out = case.run(Batch(rows=rows, kv_spans=plan_kv_spans(rows, BLOCK)))
    torch.testing.assert_close(out.double(), case.whole(rows), rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


@BOTH
def test_scores_of_any_size(dtype: torch.dtype) -> None:
    """The largest score comes early or late and is far from the others: nothing overflows, no weight is lost."""
    spec = spec_of(4, 1)
    row = Row(0, 1, 199, tuple(range(50)), DRAW)
    for at in (0, 63, 64, 199):
        case = Case(spec, 50, 1, dtype)
        case.qkv[0, spec.heads] = case.cache.pools[0][1, 0, at] * 40 if at != 199 else case.qkv[0, spec.heads] * 40
        case.qkv[0, : spec.heads] *= 40
        out = case.run(Batch(rows=(row,), kv_spans=plan_kv_spans([row], BLOCK)))
        torch.testing.assert_close(out.double(), case.whole((row,)), rtol=max(1e-4, BOUNDS[dtype]), atol=BOUNDS[dtype])


def test_chunks_beside_rows_and_alone() -> None:
    """Chunks and rows in one work list see what the other's tokens store in the cache."""
    spec = spec_of(6, 2)
    rows = (Row(0, 1, 20, tuple(range(6)), DRAW), Row(1, 1, 9, (0, 1, 7), DRAW))
    chunks = (Chunk(2, tuple(range(11)), 3, (8, 9, 10, 11)), Chunk(3, (5,), 0, (12,)))
    for batch, tokens in (
        (Batch(chunks=chunks, rows=rows, kv_spans=plan_kv_spans(rows, BLOCK)), 14),
        (Batch(chunks=chunks), 12),
    ):
        mine, theirs = Case(spec, 13, tokens, torch.float32), Case(spec, 13, tokens, torch.float32)
        mine.cache.clear(begun_blocks(batch, BLOCK))  # as the other one does before
        out = mine.run(batch)
        other = Attention([spec, spec], theirs.cache)
        q, kv = theirs.qkv[:, : spec.heads], theirs.qkv[:, spec.heads :]
        expected = other.run(other.begin(batch), 1, q, kv).view(out.shape)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(mine.cache.pools[0], theirs.cache.pools[0])


@BOTH
@pytest.mark.parametrize("seed", range(24))
def test_random_chunks(seed: int, dtype: torch.dtype) -> None:
    """Chunks of 1 to 70 tokens, at the start or behind a prefix, with windows and without.

    The reference computes each token as a row, with scores in float64.
    """
    chance = random.Random(seed)
    size, group = chance.choice([1, 3, 16, 32]), chance.choice([1, 2, 3, 4, 5, 8, 16, 17, 32, 33, 48])
    kv_heads, dim = chance.randrange(1, 4), chance.choice([16, 32, 48, 64, 80, 96, 128, 256])
    window = chance.choice([None, None, 1, 9, 64, 100])
    chunks: list[Chunk] = []
    tokens: list[Row] = []
    blocks = 0
    for number in range(chance.randrange(1, 4)):
        start, count = chance.choice([0, 0, 5, 64, 131]), chance.choice([1, 9, 32, 70])
        table = list(range(blocks, blocks + -(-(start + count) // size)))
        blocks += len(table)
        chance.shuffle(table)
        chunks.append(Chunk(number, tuple(range(count)), start, tuple(table)))
        tokens += [Row(number, 1, start + i, tuple(table), DRAW) for i in range(count)]
    case = Case(spec_of(kv_heads * group, kv_heads, dim, window), blocks, len(tokens), dtype, size=size)
    out = case.run(Batch(chunks=tuple(chunks)))
    torch.testing.assert_close(out.double(), case.whole(tuple(tokens)), rtol=5 * BOUNDS[dtype], atol=5 * BOUNDS[dtype])


def test_a_row_is_the_same_with_any_number_of_threads() -> None:
    rows = tuple(forest_of(random.Random(3), groups=3, depth=2, longest=200).rows)
    blocks = max(block for row in rows for block in row.blocks) + 1
    told = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            case = Case(spec_of(6, 2, 64), blocks, len(rows), torch.float32)
            told.append(case.run(Batch(rows=rows, kv_spans=plan_kv_spans(rows, BLOCK))))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(told[0], told[1])
    assert torch.equal(told[0], told[2])


@pytest.mark.parametrize(
    ("spec", "known"),
    [
        (spec_of(8, 2), True),
        (spec_of(96, 2, 256), True),
        (spec_of(98, 2), False),  # 49 queries to a key
        (spec_of(8, 2, 24), False),
        (spec_of(8, 2, 272), False),
        (AttentionSpec(8, 2, 16, 1.0, softcap=3.0), False),
    ],
)
def test_which_layers_the_kernels_know(spec: AttentionSpec, known: bool) -> None:
    assert fits([spec_of(8, 2), spec]) == known


def test_reference_items_are_what_is_compared_with() -> None:
    """With one row and one item, `whole` agrees with the reference's own work list."""
    case = Case(spec_of(4, 2), 3, 1, torch.float32)
    row = Row(0, 1, 10, (2, 0, 1), DRAW)
    data = case.cache.pools[0][1].double()
    item = Item((0,), row.blocks, 0, 11, 0)
    expected = reference.attn_items(case.qkv[:, :4].double(), data[:2], data[2:], [item], BLOCK, 0.3)[0]
    torch.testing.assert_close(case.whole((row,)), expected, rtol=1e-12, atol=1e-12)
