"""What every peer is asked, what it answers, and the check that the answer is what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NEW = 64
"""Tokens of each choice; an end of text does not end it sooner."""


@dataclass(frozen=True, slots=True)
class Cell:
    """n choices of one prompt of `prompt` tokens. apart: n requests for one choice each, with n different prompts."""

    prompt: int
    n: int
    apart: bool = False

    @property
    def name(self) -> str:
        """The cell's name in the output."""
        return f"{self.prompt} tokens, {f'{self.n} requests' if self.apart else f'n={self.n}'}"


@dataclass(frozen=True, slots=True)
class Asked:
    """A cell with its prompts in token ids: one prompt, or n prompts that all begin differently."""

    prompts: tuple[tuple[int, ...], ...]
    n: int
    """Choices of each prompt."""
    new: int

    @property
    def tokens(self) -> int:
        """The number of tokens to draw."""
        return len(self.prompts) * self.n * self.new


@dataclass(frozen=True, slots=True)
class Answer:
    """A peer's answer to a cell.

    seconds: until everything had arrived. first, last: until the earliest and until the latest choice had its first
    text; None if answers arrive whole. tokens: drawn, of all choices. prompt_tokens: as the peer counts them, each
    prompt once; None if it does not report them.
    """

    seconds: float
    first: float | None
    last: float | None
    tokens: int
    prompt_tokens: int | None = None


class WrongAnswer(Exception):
    """The answer is not what was asked for, so its time means nothing."""


def check(asked: Asked, answer: Answer) -> None:
    """Raise WrongAnswer unless all tokens were drawn and the peer counts the prompts' tokens as we do."""
    if answer.tokens != asked.tokens:
        raise WrongAnswer(f"{answer.tokens} tokens came, not {asked.tokens}")
    given = sum(map(len, asked.prompts))
    if answer.prompt_tokens not in (None, given):
        raise WrongAnswer(f"the prompts were {answer.prompt_tokens} tokens to it, not {given}")


def cells(prompts: Sequence[int], widths: Sequence[int]) -> list[Cell]:
    """Return one cell per length and n, and one that asks the widest n of the shortest prompt as separate requests."""
    grid = [Cell(prompt, n) for prompt in prompts for n in widths]
    return [*grid, Cell(min(prompts), max(widths), apart=True)] if max(widths) > 1 else grid
