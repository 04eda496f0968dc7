"""One step's work as plain values: what the scheduler hands to the runner, and what comes back.

No torch here. Token ids, block numbers and positions are Python ints; a block number indexes the KV
cache; positions count from 0 at the sequence's first token.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw from one row of logits.

    sequence: who gets the token. seed: the sequence's own key (request seed + choice, int64).
    position: where the drawn token will stand in the sequence. The uniform number is a function of
    (seed, position) and nothing else. temperature 0 means greedy; top_k 0 and top_p 1 mean off.
    """

    sequence: int
    seed: int
    position: int
    temperature: float
    top_k: int
    top_p: float


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of one sequence's tokens to run through the model (prefill, or recomputation).

    tokens: the ids at positions start .. start + len(tokens) - 1. blocks: the block table that covers
    positions 0 .. start + len(tokens) - 1. draws: empty unless the chunk ends the prefill; then one
    for each sequence that leaves prefill here, all drawn from the last position's logits.
    """

    sequence: int
    tokens: tuple[int, ...]
    start: int
    blocks: tuple[int, ...]
    draws: tuple[Draw, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One decoding sequence: its newest token is run and the next one drawn.

    token stands at `position`; its key and value are written to blocks[position // block_size].
    """

    sequence: int
    token: int
    position: int
    blocks: tuple[int, ...]
    draw: Draw


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of the attention work list: some rows read one span of KV, once.

    rows: positions in Batch.rows. blocks: the span's blocks, covering the absolute key positions
    lo .. hi - 1 (lo is a multiple of the block size). slot: number of the partial result of rows[0];
    the partial of rows[i] is slot + i. A row's partials are merged in the order of `lo`.
    """

    rows: tuple[int, ...]
    blocks: tuple[int, ...]
    lo: int
    hi: int
    slot: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything that one step runs. `copies` (source block, target block) are carried out first."""

    copies: tuple[tuple[int, int], ...] = ()
    chunks: tuple[Chunk, ...] = ()
    rows: tuple[Row, ...] = ()
    items: tuple[Item, ...] = ()


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step drew: (sequence, token id), chunks' draws first, then the rows', in batch order."""

    tokens: tuple[tuple[int, int], ...] = ()
