"""Sequences as the entries of a batch: their rows, chunks and draws.

No torch. Blocks were given out before (scheduler.py); nothing is changed here.
"""

from __future__ import annotations

from engine.batch import Chunk, Draw, Past, Row
from engine.sequence import Sequence


def row(sequence: Sequence, block_size: int) -> Row:
    """Return the row of a decoding sequence: its newest token, known or in flight, or the next token that it replays.

    No other sequence may hold the block that its key and value are written to.
    """
    group, position = sequence.group, sequence.position
    token = None if sequence.in_flight else sequence.output[position - len(group.prompt)]
    draw = None if sequence.to_replay else _draw(sequence, position + 1)
    cut = len(group.prompt) // block_size * block_size if group.replays else 0
    return Row(sequence.id, token, position, sequence.blocks, draw, group.adapter, cut)


def chunk(sequence: Sequence, end: int, block_size: int) -> Chunk:
    """Return the chunk from what is computed up to `end`.

    If that ends the prefill, it has the draws of all sequences that leave prefill.
    """
    group, start, last = sequence.group, sequence.computed, end == sequence.prefill_length
    leaving: list[Sequence] = []
    if last and not group.pooling and not (group.replays and sequence.output):
        leaving = [sequence] if sequence.output or group.alone else group.living()
    return Chunk(
        sequence=sequence.id,
        tokens=sequence.span(start, end),
        start=start,
        blocks=sequence.blocks[: -(-end // block_size)],
        draws=tuple([_draw(one, one.length + one.in_flight) for one in leaving]),
        next_tokens=group.prompt[start + 1 : end + 1] if group.needs_prompt_logprobs else (),
        prompt_logprobs=group.prompt_logprobs or 0,
        pooling=group.pooling,
        last=last,
        adapter=group.adapter,
    )


def _draw(sequence: Sequence, position: int) -> Draw:
    """Return a sequence's draw of the token that will stand at a position."""
    group, sampling = sequence.group, sequence.sampling
    return Draw(
        sequence=sequence.id,
        seed=sequence.seed,
        position=position,
        sampling=sampling,
        past=Past(group.prompt, sequence.output) if sequence.needs_past and sampling.looks_back else None,
        banned=group.stop_tokens if len(sequence.output) + sequence.in_flight < sampling.min_tokens else frozenset(),
        logprobs=group.logprobs,
    )
