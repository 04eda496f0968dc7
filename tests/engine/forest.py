"""Random fork trees for tests of decode attention: rows whose block tables share what their sequences forked from."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from engine.batch import Draw, Row
from engine.messages import Sampling

BLOCK = 4
DRAW = Draw(0, 0, 0, Sampling(temperature=0.0))


@dataclass
class Forest:
    """Decoding rows, and how many blocks they hold together."""

    rows: list[Row]
    blocks: int


def forest_of(
    chance: random.Random, groups: int, depth: int, *, longest: int = 40, siblings: int = 5, cuts: bool = False
) -> Forest:
    """Random trees: each group a root of any length, forked `depth` times, full blocks shared, the rest copied.

    longest, siblings: below these are what a level adds to its rows, in tokens, and how many it forks into. cuts: as
    deterministic mode has it, a row's cut is where the last fork was.
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
    chance.shuffle(names)  # tables are not consecutive in memory
    rows = [replace(row, blocks=tuple(names[block] for block in row.blocks)) for row in rows]
    return Forest(rows, used)
