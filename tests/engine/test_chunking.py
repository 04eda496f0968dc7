"""How a step's tokens are divided among prompts: by whole blocks, the oldest first, and the rest to those that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import pytest

from engine.chunking import fixed, shared_out
from engine.sequence import Sequence

SIZE = 4


@dataclass
class Prompt:
    prefill_length: int
    computed: int = 0


def ends(
    divide: Callable[[Iterable[Sequence], int, int], list[tuple[Sequence, int]]],
    prompts: list[Prompt],
    budget: int,
    unit: int,
) -> list[int]:
    """How far each prompt is computed; those that are read and come to nothing must not be there."""
    given = divide(cast(list[Sequence], prompts), budget, unit)
    assert [cast(Prompt, prompt) for prompt, _ in given] == prompts[: len(given)]
    assert sum(end - prompt.computed for prompt, end in given) <= budget
    return [end for _, end in given]


@pytest.mark.parametrize(
    ("prompts", "budget", "expected"),
    [
        ([Prompt(64)], 64, [64]),
        ([Prompt(65)], 64, [64]),
        ([Prompt(10), Prompt(5)], 64, [10, 5]),
        ([Prompt(65)], 67, [65]),
        ([Prompt(90)], 67, [64]),  # whole blocks, but where the prompt ends
        ([Prompt(90, computed=32)], 58, [90]),
        ([Prompt(190), Prompt(190)], 64, [32 + 16, 16]),
        ([Prompt(190), Prompt(32), Prompt(1)], 64, [32, 32]),
        ([Prompt(190), Prompt(28), Prompt(1)], 64, [32, 28, 1]),
        ([Prompt(190), Prompt(10)], 64, [32 + 20, 10]),
        ([Prompt(190)] * 6, 64, [32, 16, 8, 4, 4]),
        ([Prompt(190)] * 3, 10, [4, 4]),
        ([], 64, []),
    ],
)
def test_half_of_what_is_left_and_what_nobody_took(prompts: list[Prompt], budget: int, expected: list[int]) -> None:
    assert ends(shared_out, prompts, budget, SIZE) == expected


@pytest.mark.parametrize(
    ("prompts", "budget", "expected"),
    [
        ([Prompt(90)], 16, [16]),
        ([Prompt(90, computed=80)], 16, [90]),
        ([Prompt(90), Prompt(90, computed=32)], 32, [16, 48]),
        ([Prompt(90), Prompt(90)], 31, [16]),
        ([Prompt(90), Prompt(90), Prompt(3)], 31, [16]),  # none goes before an older one
        ([Prompt(90)], 15, []),
    ],
)
def test_in_deterministic_mode_a_chunk_is_of_its_own_size_or_waits(
    prompts: list[Prompt], budget: int, expected: list[int]
) -> None:
    assert ends(fixed, prompts, budget, 16) == expected


@pytest.mark.parametrize(("divide", "unit", "taken"), [(shared_out, SIZE, 5), (fixed, 16, 4)])
def test_prompts_are_read_as_far_as_the_budget_reaches(
    divide: Callable[[Iterable[Sequence], int, int], list[tuple[Sequence, int]]], unit: int, taken: int
) -> None:
    read: list[Prompt] = []

    def prompts() -> Iterator[Prompt]:
        for _ in range(9):
            read.append(Prompt(190))
            yield read[-1]

    given = divide(cast(Iterator[Sequence], prompts()), 64, unit)
    assert (len(given), len(read)) == (taken, 5)
