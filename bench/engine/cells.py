"""What is asked of every peer, what comes back, and whether it is what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NEW = 64
"""Tokens of each choice: no end of text ends it sooner."""


@dataclass(frozen=True, slots=True)
class Cell:
    """n choices of one prompt, which is so many tokens long; apart: as n requests of one choice, of n prompts."""

    prompt: int
    n: int
    apart: bool = False

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.prompt} tokens, {f'{self.n} requests' if self.apart else f'n={self.n}'}"


@dataclass(frozen=True, slots=True)
class Asked:
    """A cell with its prompts in token ids: one, or n of them, of which no two begin alike."""

    prompts: tuple[tuple[int, ...], ...]
    n: int
    """Choices of each prompt."""
    new: int

    @property
    def tokens(self) -> int:
        """How many are to be drawn."""
        return len(self.prompts) * self.n * self.new


@dataclass(frozen=True, slots=True)
class Answer:
    """seconds: until all was there. first, last: until the choice that spoke first, and the last one, said something.

    None where answers come whole. tokens: drawn, of all choices. prompt_tokens: as the peer counts them, each prompt
    once; None where it does not.
    """

    seconds: float
    first: float | None
    last: float | None
    tokens: int
    prompt_tokens: int | None = None


class WrongAnswer(Exception):
    """What came is not what was asked for, so its time says nothing."""


def check(asked: Asked, answer: Answer) -> None:
    """Raise WrongAnswer unless all tokens were drawn, after the prompts as they were given."""
    if answer.tokens != asked.tokens:
        raise WrongAnswer(f"{answer.tokens} tokens came, not {asked.tokens}")
    given = sum(map(len, asked.prompts))
    if answer.prompt_tokens not in (None, given):
        raise WrongAnswer(f"the prompts were {answer.prompt_tokens} tokens to it, not {given}")


def cells(prompts: Sequence[int], widths: Sequence[int]) -> list[Cell]:
    """One request for each length and n; and, of the shortest prompt and the widest n, as requests of their own."""
    grid = [Cell(prompt, n) for prompt in prompts for n in widths]
    return [*grid, Cell(min(prompts), max(widths), apart=True)] if max(widths) > 1 else grid
