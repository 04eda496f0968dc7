"""How far each prompt gets in a step: the token budget shared out over those that are in computation. No torch."""

from __future__ import annotations

from collections.abc import Iterable

from engine.sequence import Sequence


def shared_out(prompts: Iterable[Sequence], budget: int, size: int) -> list[tuple[Sequence, int]]:
    """How far each of these prompts, oldest first, is computed by a step of `budget` tokens, as (prompt, end).

    Cut at whole blocks of `size` tokens, so that no block is written by two chunks. The oldest goes first; one that
    does not end in this step takes half of what is left, so that a long prompt keeps nobody out, and in the end what
    nobody behind it has wanted. `prompts` is read no further than the budget reaches.
    """
    ends: list[tuple[Sequence, int]] = []
    for sequence in prompts:
        half = max(budget // 2 // size, 1) * size
        end = sequence.length if sequence.length - sequence.computed <= budget else sequence.computed + half
        ends.append((sequence, end))
        budget -= end - sequence.computed
        if budget < size:
            break
    cut: list[tuple[Sequence, int]] = []
    for sequence, end in ends:
        more = sequence.length - end if sequence.length - end <= budget else budget // size * size
        budget -= more
        cut.append((sequence, end + more))
    return cut
