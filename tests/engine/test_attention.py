"""The CPU's attention against the plain reference: random fork trees, any cut of the past, any order, chunks."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
import torch

from engine.attention.cache import KvCache
from engine.attention.compute import Attention
from engine.batch import Batch, Chunk, KvSpan, Row
from engine.kernels import reference
from engine.kv_spans import Item, cut_items, plan_kv_spans
from engine.models.spec import AttentionSpec
from tests.engine.attending import SPECIAL, Case, spec_of, special
from tests.engine.forest import BLOCK, DRAW, forest_of


def _any_cut(chance: random.Random, rows: list[Row]) -> tuple[KvSpan, ...]:
    """Stretches of one row each, cut at random block boundaries, in random order."""
    kv_spans: list[KvSpan] = []
    for number, row in enumerate(rows):
        lo = 0
        while lo <= row.position:
            hi = min(lo + BLOCK * chance.randrange(1, 6), row.position + 1)
            kv_spans.append(KvSpan((number,), lo, hi))
            lo = hi
    chance.shuffle(kv_spans)
    return tuple(kv_spans)


@pytest.mark.parametrize("seed", range(24))
def test_random_fork_trees_equal_the_reference(seed: int) -> None:
    chance = random.Random(seed)
    forest = forest_of(chance, groups=chance.randrange(1, 9), depth=chance.randrange(0, 4))
    kv_heads = chance.randrange(1, 4)
    spec = spec_of(kv_heads * chance.randrange(1, 9), kv_heads)
    span = chance.choice([8, 16, 512])
    case = Case(spec, forest.blocks, len(forest.rows), span=span)
    kv_spans = plan_kv_spans(forest.rows, BLOCK, gate=chance.choice([0, 20]))
    out = case.run(Batch(rows=tuple(forest.rows), kv_spans=kv_spans))
    items = cut_items(forest.rows, kv_spans, BLOCK, span=span)
    keys, values = case.halves()
    parts = reference.attn_items(case.q.double(), keys, values, items, BLOCK, spec.scale)
    merged = reference.merge_parts(*parts, items, len(forest.rows))
    torch.testing.assert_close(merged, case.whole(forest.rows), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(out.double(), merged, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_any_cut_of_the_past_gives_the_same(seed: int) -> None:
    chance = random.Random(100 + seed)
    forest = forest_of(chance, groups=3, depth=1)
    case = Case(spec_of(6, 2), forest.blocks, len(forest.rows))
    out = case.run(Batch(rows=tuple(forest.rows), kv_spans=_any_cut(chance, forest.rows)))
    torch.testing.assert_close(out.double(), case.whole(forest.rows), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_rows_and_siblings_gives_the_same(seed: int) -> None:
    chance = random.Random(200 + seed)
    forest = forest_of(chance, groups=2, depth=2)
    case = Case(spec_of(6, 2), forest.blocks, len(forest.rows))
    first = case.run(Batch(rows=tuple(forest.rows), kv_spans=plan_kv_spans(forest.rows, BLOCK)))
    order = list(range(len(forest.rows)))
    chance.shuffle(order)
    case.q, case.kv = case.q[order], case.kv[order]
    rows = [forest.rows[i] for i in order]
    kv_spans = list(plan_kv_spans(rows, BLOCK))
    chance.shuffle(kv_spans)
    second = case.run(Batch(rows=tuple(rows), kv_spans=tuple(kv_spans)))
    torch.testing.assert_close(second, first[order], rtol=1e-6, atol=1e-6)


def test_alone_and_beside_others_gives_the_same() -> None:
    chance = random.Random(7)
    forest = forest_of(chance, groups=6, depth=1)
    case = Case(spec_of(9, 3), forest.blocks, len(forest.rows), span=16)
    together = case.run(Batch(rows=tuple(forest.rows), kv_spans=plan_kv_spans(forest.rows, BLOCK)))
    q, kv = case.q, case.kv
    for i, row in enumerate(forest.rows):
        case.q, case.kv = q[i : i + 1], kv[i : i + 1]
        alone = case.run(Batch(rows=(row,), kv_spans=plan_kv_spans([row], BLOCK)))
        torch.testing.assert_close(alone[0], together[i], rtol=1e-6, atol=1e-6)


def test_bfloat16_is_as_close_as_bfloat16_can_be() -> None:
    chance = random.Random(3)
    forest = forest_of(chance, groups=3, depth=2)
    case = Case(spec_of(6, 2), forest.blocks, len(forest.rows), torch.bfloat16)
    out = case.run(Batch(rows=tuple(forest.rows), kv_spans=plan_kv_spans(forest.rows, BLOCK)))
    torch.testing.assert_close(out.double(), case.whole(forest.rows), rtol=0.05, atol=0.05)


def test_scores_far_apart_neither_overflow_nor_vanish() -> None:
    rows = [Row(0, 1, 30, tuple(range(8)), DRAW)]
    case = Case(spec_of(2, 1), 8, 1)
    case.cache.pools[0] *= 60
    kv_spans = tuple(KvSpan((0,), lo, min(lo + 4, 31)) for lo in range(0, 31, 4))
    out = case.run(Batch(rows=tuple(rows), kv_spans=kv_spans))
    assert out.isfinite().all()
    torch.testing.assert_close(out.double(), case.whole(rows), rtol=1e-4, atol=1e-3)


def test_what_lies_beyond_a_span_is_not_read() -> None:
    # The slots behind the newest token hold another sequence's leavings.
    rows = [Row(0, 1, 9, (0, 1, 2), DRAW), Row(1, 1, 2, (3,), DRAW)]
    case = Case(spec_of(4, 2), 4, 2)
    batch = Batch(rows=tuple(rows), kv_spans=plan_kv_spans(rows, BLOCK))
    before = case.run(batch)
    case.cache.pools[0][:, :, 10:12] = 1e4
    case.cache.pools[0][:, :, 15:] = -1e4
    assert torch.equal(case.run(batch), before)


@pytest.mark.parametrize("length", [1, 3, 4, 63, 64, 65, 131])
@pytest.mark.parametrize("group", [1, 3])
def test_prefill_equals_the_reference(length: int, group: int) -> None:
    blocks = tuple(random.Random(1).sample(range(40), 33))
    spec = spec_of(2 * group, 2)
    case = Case(spec, 40, length)
    out = case.run(Batch(chunks=(Chunk(0, (1,) * length, 0, blocks),)))
    keys, values = case.halves()
    slots = reference.span_slots(blocks, 0, length, BLOCK)
    expected = reference.prefill_attn(case.q.double(), keys, values, slots, 0, spec.scale)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cuts", [(0, 100), (0, 40, 100), (0, 4, 64, 68, 100), (0, 13, 77, 100)])
def test_chunks_of_a_prompt_beside_rows(cuts: tuple[int, ...]) -> None:
    # Each chunk in its own step, beside another prompt's chunk and two decoding rows.
    blocks = tuple(random.Random(2).sample(range(25), 25))
    others = [Row(5, 1, 6, (25, 26), DRAW), Row(6, 1, 3, (27,), DRAW)]
    case = Case(spec_of(6, 2), 40, 103 + 20)
    q, kv = case.q[:100], case.kv[:100]
    whole = Case(spec_of(6, 2), 40, 100)
    whole.q, whole.kv = q, kv
    expected = whole.run(Batch(chunks=(Chunk(0, (1,) * 100, 0, blocks),)))
    parts = []
    for start, end in pairwise(cuts):
        beside = Chunk(9, (1,) * 20, 0, tuple(range(30, 35)))
        mine = Case(spec_of(6, 2), 40, 0)
        mine.cache, mine.attention = case.cache, case.attention
        mine.q = torch.cat((case.q[100:120], q[start:end], case.q[120:122]))
        mine.kv = torch.cat((case.kv[100:120], kv[start:end], case.kv[120:122]))
        chunk = Chunk(0, (1,) * (end - start), start, blocks)
        out = mine.run(Batch(chunks=(beside, chunk), rows=tuple(others), kv_spans=plan_kv_spans(others, BLOCK)))
        parts.append(out[20:-2])
        rows_alone = case.halves()
        items = [Item((i,), row.blocks, 0, row.position + 1, i) for i, row in enumerate(others)]
        decoded = reference.attn_items(mine.q[-2:].double(), *rows_alone, items, BLOCK, case.spec.scale)[0]
        torch.testing.assert_close(out[-2:].double(), decoded, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("start", "tiles"), [(0, [64, 36]), (40, [24, 36]), (64, [36])])
def test_tiles_end_at_fixed_positions_wherever_a_chunk_begins(
    start: int, tiles: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = tuple(range(25))
    case = Case(spec_of(6, 2), 40, 100 - start)
    scored, scores = [], case.attention._chunks.scores

    def noted(tile: torch.Tensor, *others: Any) -> torch.Tensor:
        scored.append(tile.shape[1] // 3)  # three query heads for each key head
        return scores(tile, *others)

    monkeypatch.setattr(case.attention._chunks, "scores", noted)
    case.run(Batch(chunks=(Chunk(0, (1,) * (100 - start), start, blocks),)))
    assert scored == tiles


@pytest.mark.parametrize("rows", [2, 8, 32])
def test_a_shared_prefix_is_a_bucket_of_its_own(rows: int) -> None:
    # Neither the prefix of all nor the rest of each is padded to the other's shape.
    tables = [(*range(124), *range(124 + 20 * i, 144 + 20 * i)) for i in range(rows)]
    fork = [Row(i, 1, 496 + 61 + i % 3, tables[i], DRAW) for i in range(rows)]
    case = Case(spec_of(6, 2), 800, rows)
    plan = case.attention.begin(Batch(rows=tuple(fork), kv_spans=plan_kv_spans(fork, BLOCK)))
    shapes = sorted((bucket.width, bucket.items) for bucket in plan.layers[0].buckets)
    assert shapes[-1] == (rows, 1)
    assert [width for width, _ in shapes[:-1]] == [1] * (len(shapes) - 1)


def test_buckets_stay_small_enough_to_gather() -> None:
    rows = [Row(i, 1, 1999, tuple(range(500)), DRAW) for i in range(40)]
    case = Case(spec_of(2, 1), 500, 40, span=500)
    plan = case.attention.begin(Batch(rows=tuple(rows), kv_spans=tuple(KvSpan((i,), 0, 2000) for i in range(40))))
    assert sum(bucket.items for bucket in plan.layers[0].buckets) == 160
    assert max(bucket.items for bucket in plan.layers[0].buckets) * 500 <= 1 << 14


def test_copy_blocks() -> None:
    case = Case(spec_of(4, 2), 8, 1)
    expected = case.cache.pools[0].clone()
    pairs = [(0, 5), (0, 6), (3, 1)]
    reference.copy_blocks(expected, pairs, BLOCK)
    case.cache.copy_blocks(pairs)
    assert torch.equal(case.cache.pools[0], expected)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("settings", SPECIAL, ids=str)
def test_windows_caps_and_sinks_of_rows(seed: int, settings: dict[str, Any]) -> None:
    chance = random.Random(300 + seed)
    forest = forest_of(chance, groups=chance.randrange(1, 5), depth=chance.randrange(0, 3))
    spec, sinks = special(settings, 6, 2)
    case = Case(spec, forest.blocks, len(forest.rows), span=chance.choice([8, 16, 512]))
    kv_spans = plan_kv_spans(forest.rows, BLOCK, gate=chance.choice([0, 20]))
    out = case.run(Batch(rows=tuple(forest.rows), kv_spans=kv_spans), sinks=sinks)
    case.assert_alone(forest.rows, out, sinks)


@pytest.mark.parametrize("settings", [*SPECIAL, {"window": 70}, {"window": 130}], ids=str)
def test_windows_caps_and_sinks_of_chunks(settings: dict[str, Any]) -> None:
    # A prompt of 150 in chunks that begin and end anywhere, a decoding row beside each.
    chance = random.Random(8)
    tokens, cuts = 150, [0, 5, 64, 65, 131, 150]
    blocks = tuple(chance.sample(range(50), 38))
    spec, sinks = special(settings, 4, 2)
    case = Case(spec, 60, tokens)
    q, kv = case.q, case.kv
    parts = []
    for start, end in pairwise(cuts):
        row = Row(0, 1, 20, (50, 51, 52, 53, 54, 55), DRAW)
        case.q, case.kv = torch.cat((q[start:end], q[:1])), torch.cat((kv[start:end], kv[:1]))
        chunk = Chunk(0, (1,) * (end - start), start, blocks)
        out = case.run(Batch(chunks=(chunk,), rows=(row,), kv_spans=plan_kv_spans([row], BLOCK)), sinks=sinks)
        parts.append(out[:-1])
    slots = reference.span_slots(blocks, 0, tokens, BLOCK)
    expected = reference.prefill_attn(
        q.double(), *case.halves(), slots, 0, spec.scale, window=spec.window, softcap=spec.softcap, sinks=sinks
    )
    torch.testing.assert_close(torch.cat(parts).double(), expected, rtol=1e-5, atol=1e-5)


def test_a_window_reads_no_more_blocks_than_it_has_to() -> None:
    rows = [Row(i, 1, 400 + i, tuple(range(101)), DRAW) for i in range(2)]
    case = Case(spec_of(2, 1, window=10), 101, 2)
    plan = case.attention.begin(Batch(rows=tuple(rows), kv_spans=plan_kv_spans(rows, BLOCK)))
    # Keys 391 .. 401: three blocks for both rows and one for each, padded to one bucket of three times three.
    assert sum(len(bucket.places) for bucket in plan.layers[0].buckets) == 2 * 3 * 3
    chunk = Chunk(0, (1,) * 4, 396, tuple(range(100)))
    plan = case.attention.begin(Batch(chunks=(chunk,)))
    assert len(plan.layers[0].chunks[0].places) == 2 * 4  # keys 387 .. 399


def test_layers_of_different_shapes_and_windows() -> None:
    layers = [spec_of(4, 2), spec_of(4, 2, window=6), AttentionSpec(6, 1, 8, 0.3), spec_of(4, 2)]
    cache = KvCache(layers, 12, BLOCK, torch.float32)
    assert [tuple(pool.shape) for pool in cache.pools] == [(3, 4, 48, 16), (1, 2, 48, 8)]
    attention = Attention(layers, cache)
    torch.manual_seed(1)
    row = Row(0, 1, 20, (7, 3, 9, 1, 0, 2), DRAW)
    chunk = Chunk(1, (1,) * 13, 0, (5, 4, 8, 6))
    plan = attention.begin(Batch(chunks=(chunk,), rows=(row,), kv_spans=plan_kv_spans([row], BLOCK)))
    assert plan.layers[0] is plan.layers[3]
    for layer, spec in enumerate(layers):
        for pool in cache.pools:
            pool.copy_(torch.randn(pool.shape))
        q = torch.randn(14, spec.heads, spec.head_dim)
        kv = torch.randn(14, 2 * spec.kv_heads, spec.head_dim)
        out = attention.run(plan, layer, q, kv).view(q.shape)
        pool, place = (cache.pools[1], 0) if layer == 2 else (cache.pools[0], {0: 0, 1: 1, 3: 2}[layer])
        k, v = pool[place].double().chunk(2)
        for begin, end, start, blocks in ((0, 13, 0, chunk.blocks), (13, 14, 20, row.blocks)):
            slots = reference.span_slots(blocks, 0, start + end - begin, BLOCK)
            expected = reference.prefill_attn(q[begin:end].double(), k, v, slots, start, spec.scale, window=spec.window)
            torch.testing.assert_close(out[begin:end].double(), expected, rtol=1e-5, atol=1e-5)
    before = [pool.clone() for pool in cache.pools]
    cache.copy_blocks([(7, 10), (5, 11)])
    for pool, old in zip(cache.pools, before, strict=True):
        reference.copy_blocks(old, [(7, 10), (5, 11)], BLOCK)
        assert torch.equal(pool, old)
