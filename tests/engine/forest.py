"""Random fork trees for tests of decode attention: rows whose block tables share the blocks from before their forks."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from engine.batch import Draw, Row
from engine.messages import Sampling

BLOCK = 4
DRAW = Draw(0, 0, 0, Sampling(temperature=0.0))


@dataclass
class Forest:
    """Decoding rows, and the number of blocks that they use together."""

    rows: list[Row]
    blocks: int


def forest_of(
    chance: random.Random, groups: int, depth: int, *, longest: int = 40, siblings: int = 5, cuts: bool = False
) -> Forest:
    """Return random trees: each group has a root of random length, forked `depth` times; full blocks are shared.

    The rest of a forked block is copied. longest, siblings: exclusive upper bounds of the tokens that a level adds, and
    of its forks. cuts: set each row's cut at the last fork, as deterministic mode does.
    """
    used = 0

    def fresh(count: int) -> tuple[int, ...]:
        nonlocal used
        used += count
        return tuple(range(used - count, used))

    rows: list[Row] = []

    def grow(shared: tuple[int, ...], level: int) -> None:
        length = len(shared) * BLOCK + chance.randrange(1, longest)
        table = shared + fresh(-(-length // BLOCK) - len(shared))
        if level == 0:
            rows.append(Row(len(rows), 1, length - 1, table, DRAW, cut=len(shared) * BLOCK if cuts else 0))
            return
        for _ in range(chance.randrange(1, siblings)):
            grow(table[: length // BLOCK], level - 1)

    for _ in range(groups):
        grow((), depth)
    chance.shuffle(rows)
    names = list(range(used))
    chance.shuffle(names)  # tables must not be consecutive in memory
    rows = [replace(row, blocks=tuple(names[block] for block in row.blocks)) for row in rows]
    return Forest(rows, used)
