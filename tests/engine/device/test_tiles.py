"""The work list of prefill attention: every position of every chunk once, cut where the sequence says."""

from __future__ import annotations

import random

import pytest

from engine.batch import Chunk
from engine.device.tiles import plan_tiles

BLOCK = 4


def _chunk(chance: random.Random, sequence: int) -> Chunk:
    start = chance.choice([0, chance.randrange(60)])
    length = chance.randrange(1, 50)
    blocks = tuple(1000 * sequence + i for i in range(-(-(start + length) // BLOCK) + chance.randrange(3)))
    return Chunk(sequence, (1,) * length, start, blocks)


@pytest.mark.parametrize("seed", range(20))
def test_every_position_is_in_one_tile(seed: int) -> None:
    chance = random.Random(seed)
    chunks = [_chunk(chance, sequence) for sequence in range(chance.randrange(1, 6))]
    queries = chance.choice([1, 5, 16, 128])
    plan = plan_tiles(chunks, queries, BLOCK)
    covered: list[tuple[int, int, int]] = []
    for first, low, end, offset, table in plan.tiles.tolist():
        assert first % queries == 0
        assert first <= low < end <= first + queries
        owner = plan.blocks[table] // 1000
        blocks = plan.blocks[table : table + -(-end // BLOCK)]
        assert blocks.tolist() == list(chunks[owner].blocks[: len(blocks)])
        covered += [(owner, position, position + offset) for position in range(low, end)]
    step = [(c.sequence, c.start + i) for c in chunks for i in range(len(c.tokens))]
    assert sorted(covered) == [(owner, position, token) for token, (owner, position) in enumerate(step)]


def test_cuts_do_not_depend_on_where_a_chunk_begins() -> None:
    table = tuple(range(40))
    whole = plan_tiles([Chunk(0, (1,) * 100, 0, table)], 24, BLOCK).tiles[:, 0].tolist()
    parts = [plan_tiles([Chunk(0, (1,) * n, s, table)], 24, BLOCK).tiles[:, 0] for s, n in ((0, 30), (30, 70))]
    assert {int(first) for part in parts for first in part} == set(whole)


def test_tiles_with_the_most_keys_come_first() -> None:
    chunks = [Chunk(0, (1,) * 40, 0, tuple(range(10))), Chunk(1, (1,) * 40, 100, tuple(range(50)))]
    ends = plan_tiles(chunks, 16, BLOCK).tiles[:, 2].tolist()
    assert ends == sorted(ends, reverse=True)


def test_no_chunks_are_no_tiles() -> None:
    plan = plan_tiles([], 16, BLOCK)
    assert plan.tiles.shape == (0, 5)
    assert plan.blocks.shape == (0,)
