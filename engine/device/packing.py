"""A Batch as small arrays: every token of the step, its position, and where its keys and values go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.batch import Batch, Chunk
from engine.device.frame import Arrays

NO_SLOT = -1
"""The slot of a row that only pads a recorded step: its keys and values are not stored."""


def pack_tokens(batch: Batch, block_size: int, drawn: Mapping[int, int], rows: int) -> Arrays:
    """Pack the step's tokens, the chunks' in order, then one per row, padded to `rows` rows.

    tokens    int64 [T]  their ids, if the host knows them
    sources   int32 [T]  otherwise the index of its draw in the step before (`drawn`, by sequence); -1 if known
    positions int64 [T]
    slots     int64 [T]  of the cache
    row_positions int32 [R]
    """
    tokens = [token for chunk in batch.chunks for token in chunk.tokens]
    known = len(tokens)
    tokens += [0 if row.token is None else row.token for row in batch.rows]
    sources = [-1] * known + [drawn[row.sequence] if row.token is None else -1 for row in batch.rows]
    row_positions = [row.position for row in batch.rows]
    slots = [row.blocks[row.position // block_size] * block_size + row.position % block_size for row in batch.rows]
    more = rows - len(batch.rows)
    places = [_places(chunk, block_size) for chunk in batch.chunks]
    return {
        "tokens": np.array(tokens + [0] * more, dtype=np.int64),
        "sources": np.array(sources + [-1] * more, dtype=np.int32),
        "positions": np.concatenate([*[p for p, _ in places], np.array(row_positions + [0] * more, dtype=np.int64)]),
        "slots": np.concatenate([*[s for _, s in places], np.array(slots + [NO_SLOT] * more, dtype=np.int64)]),
        "row_positions": np.array(row_positions + [0] * more, dtype=np.int32),
    }


def pack_chunks(batch: Batch, drawn_from: Sequence[int]) -> Arrays:
    """Pack what only steps with chunks have.

    drawn_from int64 [N]  the tokens whose logits are drawn from
    followers  int32 [F]  the chunks' next_tokens
    """
    followers = [token for chunk in batch.chunks for token in chunk.next_tokens]
    return {"drawn_from": np.array(drawn_from, dtype=np.int64), "followers": np.array(followers, dtype=np.int32)}


def _places(chunk: Chunk, block_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a chunk's positions and their slots."""
    positions = np.arange(chunk.start, chunk.start + len(chunk.tokens), dtype=np.int64)
    blocks = np.array(chunk.blocks, dtype=np.int64)
    return positions, blocks[positions // block_size] * block_size + positions % block_size
