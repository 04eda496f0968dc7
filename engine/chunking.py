"""How far each prompt gets in a step: the token budget shared out over those that are in computation. No torch.

In deterministic mode every prompt is cut at multiples of one size, whatever else runs: a chunk then has the same shape
and the same past each time it is computed, and it is a pass of its own through the model.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.config import EngineConfig
from engine.sequence import Sequence

_FIXED = 256  # tokens: products run at about their full speed, and a chat's next turn finds most of the last one


def shared_out(prompts: Iterable[Sequence], budget: int, size: int) -> list[tuple[Sequence, int]]:
    """How far each of these prompts, oldest first, is computed by a step of `budget` tokens, as (prompt, end).

    Cut at whole blocks of `size` tokens, so that no block is written by two chunks. The oldest goes first; one that
    does not end in this step takes half of what is left, so that a long prompt keeps nobody out, and in the end what
    nobody behind it has wanted. `prompts` is read no further than the budget reaches.
    """
    ends: list[tuple[Sequence, int]] = []
    for sequence in prompts:
        half = max(budget // 2 // size, 1) * size
        end = sequence.prefill if sequence.prefill - sequence.computed <= budget else sequence.computed + half
        ends.append((sequence, end))
        budget -= end - sequence.computed
        if budget < size:
            break
    cut: list[tuple[Sequence, int]] = []
    for sequence, end in ends:
        more = sequence.prefill - end if sequence.prefill - end <= budget else budget // size * size
        budget -= more
        cut.append((sequence, end + more))
    return cut


def fixed_size(config: EngineConfig, batch_tokens: int) -> int:
    """The size of deterministic mode's chunks, in tokens: whole blocks, and no more than a step has for prompts.

    batch_tokens: of a step, at least config.least_batch_tokens.
    """
    room = batch_tokens - config.max_sequences
    return max(min(_FIXED, room) // config.block_size, 1) * config.block_size


def fixed(prompts: Iterable[Sequence], budget: int, chunk: int) -> list[tuple[Sequence, int]]:
    """As `shared_out`, but each prompt by the next chunk of `chunk` tokens, its last one by what is left of it.

    A chunk that does not fit the budget waits for another step.
    """
    ends: list[tuple[Sequence, int]] = []
    for sequence in prompts:
        end = min(sequence.computed + chunk, sequence.prefill)
        budget -= end - sequence.computed
        if budget < 0:
            break
        ends.append((sequence, end))
    return ends
