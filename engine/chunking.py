"""How far each prompt is computed in a step: the token budget is divided among the prompts in prefill. No torch.

In deterministic mode every prompt is cut at multiples of one size, whatever else runs. So a chunk has the same shape
and the same past each time it is computed, and it is a pass of its own through the model.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.config import EngineConfig
from engine.sequence import Sequence

_FIXED = 256  # tokens: matrix products reach about full speed, and a chat's next turn finds most of the last one


def shared_out(prompts: Iterable[Sequence], budget: int, size: int) -> list[tuple[Sequence, int]]:
    """Return how far each of these prompts, oldest first, is computed by a step of `budget` tokens, as (prompt, end).

    Prompts are cut at whole blocks of `size` tokens, so that no block is written by two chunks. The oldest goes first.
    A prompt that does not end in this step takes half of what is left, so that a long prompt does not keep others out.
    In the end it also gets what the prompts behind it did not take. `prompts` is read no further than the budget
    reaches.
    """
    ends: list[tuple[Sequence, int]] = []
    for sequence in prompts:
        half = max(budget // 2 // size, 1) * size
        left = sequence.prefill_length - sequence.computed
        end = sequence.computed + (left if left <= budget else half)
        ends.append((sequence, end))
        budget -= end - sequence.computed
        if budget < size:
            break
    cut: list[tuple[Sequence, int]] = []
    for sequence, end in ends:
        more = min(sequence.prefill_length - end, budget // size * size)
        budget -= more
        cut.append((sequence, end + more))
    return cut


def fixed_size(config: EngineConfig, batch_tokens: int) -> int:
    """Return the size of deterministic mode's chunks in tokens: whole blocks, and no more than a step has for prompts.

    batch_tokens: the tokens of a step, at least config.least_batch_tokens.
    """
    room = batch_tokens - config.max_sequences
    return max(min(_FIXED, room) // config.block_size, 1) * config.block_size


def fixed(prompts: Iterable[Sequence], budget: int, chunk: int) -> list[tuple[Sequence, int]]:
    """Like `shared_out`, but compute the next `chunk` tokens of each prompt, or what is left of it.

    A chunk that does not fit the budget waits for another step.
    """
    ends: list[tuple[Sequence, int]] = []
    for sequence in prompts:
        end = min(sequence.computed + chunk, sequence.prefill_length)
        budget -= end - sequence.computed
        if budget < 0:
            break
        ends.append((sequence, end))
    return ends
