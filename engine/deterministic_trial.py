"""Tests deterministic mode on this machine before it is promised, because rounding depends on the machine's libraries.

The mode fixes the shapes of everything that runs. Whether a row's numbers then depend neither on its place among the
rows nor on the other rows is a property of the libraries: it holds for those that we know, and is tested here for those
of this machine. No torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.batch import Batch, Chunk, Draw, Row, StepOutput, plan_kv_spans
from engine.messages import Logprobs, Ready, Sampling

Run = Callable[[Batch], StepOutput]

_MOST = 128  # rows that are tried together: as many as any backend runs in one pass


def holds(run: Run, ready: Ready, max_sequences: int, logprobs: int, adapter: str | None = None) -> bool:
    """Whether a row draws the same token alone and first or last among a full set of rows.

    logprobs: so many of the likeliest tokens must be the same too. adapter: which all rows run with.

    Writes to the cache, whose blocks must be free. A model or cache too small for the test passes.
    """
    most = min(max_sequences, _MOST, ready.blocks - 1)
    if most < 2 or ready.max_model_len < ready.block_size + 2:
        return True
    size = ready.block_size
    prompt = tuple([7919 * position % ready.vocab_size for position in range(size)])
    run(Batch(chunks=(Chunk(0, prompt, 0, (0,)),)))
    fork = [replace(_row(number, size, ready.vocab_size, logprobs), adapter=adapter) for number in range(most)]
    tried, *others = fork
    seen = [_drawn(run, rows, size) for rows in ([tried], [tried, *others], [*others, tried])]
    return seen[1:] == seen[:-1]


def _row(number: int, size: int, vocabulary: int, logprobs: int) -> Row:
    """Return a row behind one block that all rows share, with a block of its own."""
    draw = Draw(number, number, size + 1, Sampling(), logprobs=logprobs)
    return Row(number, (104_729 * number + 1) % vocabulary, size, (0, number + 1), draw, cut=size)


def _drawn(run: Run, rows: list[Row], size: int) -> tuple[int, Logprobs]:
    output = run(Batch(rows=tuple(rows), kv_spans=plan_kv_spans(rows, size)))
    return dict(output.tokens)[0], output.logprobs[0]
