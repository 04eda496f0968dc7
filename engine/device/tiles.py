"""The work list of prefill attention: which stretches of which chunks' queries a program computes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.batch import Chunk


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of all chunks of a step, those with the most keys first, so that the last ones to run are short.

    tiles [N, 5]: the tile's first position (a multiple of its width); the first position that the chunk has of it; the
    position behind the last; what to add to a position to get its token's index in the step; where the chunk's block
    table begins in `blocks` (its first block holds position 0).
    """

    tiles: NDArray[np.int32]
    blocks: NDArray[np.int32]


def plan_tiles(chunks: Sequence[Chunk], queries: int, block_size: int) -> Tiles:
    """Cut chunks, whose tokens follow each other in a step, into tiles of at most `queries` positions.

    Tiles end at multiples of `queries`, counted from the sequence's first token, wherever a chunk begins or ends.
    """
    lists: list[NDArray[np.int32]] = []
    blocks: list[int] = []
    begin = 0
    for chunk in chunks:
        end = chunk.start + len(chunk.tokens)
        first = np.arange(chunk.start // queries * queries, end, queries, dtype=np.int32)
        tiles = np.empty((len(first), 5), dtype=np.int32)
        tiles[:, 0] = first
        tiles[:, 1] = np.maximum(first, chunk.start)
        tiles[:, 2] = np.minimum(first + queries, end)
        tiles[:, 3] = begin - chunk.start
        tiles[:, 4] = len(blocks)
        lists.append(tiles)
        blocks += chunk.blocks[: -(-end // block_size)]
        begin += len(chunk.tokens)
    joined = np.concatenate(lists) if lists else np.empty((0, 5), dtype=np.int32)
    longest_first = np.argsort(-joined[:, 2], kind="stable")
    return Tiles(joined[longest_first], np.array(blocks, dtype=np.int32))
