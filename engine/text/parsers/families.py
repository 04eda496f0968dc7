"""Which parser a model's answers need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.text.parsers.parts import Parser, Plain

NewId = Callable[[], str]
"""Gives a fresh hexadecimal text of 32 digits; a family makes its calls' ids of it."""


@dataclass(frozen=True, slots=True)
class Families:
    """How a model writes tool calls and reasoning, by family names; None where it does not."""

    tools: str | None = None
    reasoning: str | None = None


def parser_for(families: Families, *, calls: bool, thinking: bool, new_id: NewId) -> Parser:
    """A fresh parser for one choice.

    calls: tool calls are looked for. thinking: the prompt has already opened the reasoning.
    """
    return Plain()
