"""Tests deterministic mode on this machine before it is promised, because rounding depends on the machine's libraries.

The mode fixes the shapes of everything that runs. Whether a row's numbers then depend neither on its place among the
rows nor on the other rows is a property of the libraries: it holds for those that we know, and is tested here for those
of this machine. No torch.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.batch import Batch, Chunk, Draw, Row, StepOutput
from engine.kv_spans import plan_kv_spans
from engine.messages import Logprobs, Ready, Sampling

Run = Callable[[Batch], StepOutput]

_MOST = 128  # rows that are tried together: as many as any backend runs in one pass
_SHARED = 16  # tokens that they share, if there is room: the order in which fewer are added up may not show


def holds(run: Run, ready: Ready, max_sequences: int, logprobs: int, adapter: str | None = None) -> bool:
    """Whether a row draws the same token alone, first or last among other rows, and at every place among its copies.

    logprobs: so many of the likeliest tokens must be the same too. adapter: which all rows run with.

    Writes to the cache, whose blocks must be free. A model or cache too small for the test passes.
    """
    most = min(max_sequences, _MOST, ready.blocks - 1)
    if most < 2 or ready.max_model_len < ready.block_size + 2:
        return True
    size = ready.block_size
    shared = max(1, min(_SHARED // size, ready.blocks - most, (ready.max_model_len - 2) // size))
    length = shared * size
    prompt = tuple([7919 * position % ready.vocab_size for position in range(length)])
    run(Batch(chunks=(Chunk(0, prompt, 0, tuple(range(shared))),)))

    def row(number: int, like: int) -> Row:
        """Return a row behind the prompt that all share, with a block of its own. like: what decides its numbers."""
        draw = Draw(number, like, length + 1, Sampling(), logprobs=logprobs)
        token = (104_729 * like + 1) % ready.vocab_size
        return Row(number, token, length, (*range(shared), shared + number), draw, adapter=adapter, cut=length)

    tried, *others = [row(number, number) for number in range(most)]
    copies = [row(number, 0) for number in range(most)]
    (expected,) = _drawn(run, [tried], size)
    beside = [_drawn(run, [tried, *others], size)[0], _drawn(run, [*others, tried], size)[0]]
    return all(drawn == expected for drawn in beside + _drawn(run, copies, size))


def _drawn(run: Run, rows: list[Row], size: int) -> list[tuple[int, Logprobs]]:
    """Return what rows draw, in the order of their sequences."""
    output = run(Batch(rows=tuple(rows), kv_spans=plan_kv_spans(rows, size)))
    return [(token, output.logprobs[sequence]) for sequence, token in sorted(output.tokens)]
