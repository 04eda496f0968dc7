"""Joins parser parts into what a client would read of one choice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from engine.text.parsers.parts import Content, Parser, Part, Reasoning, ToolArguments, ToolStart


@dataclass
class ChoiceText:
    """One choice's answer: texts joined, calls as (name, arguments)."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def counting() -> Callable[[], str]:
    """Return a generator of ids of 32 digits: 0, 1, 2 ..."""
    numbers = itertools.count()
    return lambda: f"{next(numbers):032x}"


def fold(parts: Iterable[Part]) -> ChoiceText:
    """Join parts into one answer; asserts that each has text and comes in order."""
    said = ChoiceText()
    for part in parts:
        match part:
            case ToolStart(index, identity, name):
                assert index == len(said.calls) and identity
                said.calls.append((name, ""))
            case ToolArguments(index, text):
                assert text and index == len(said.calls) - 1
                name, before = said.calls[index]
                said.calls[index] = (name, before + text)
            case Content(text):
                assert text
                said.content += text
            case Reasoning(text):
                assert text
                said.reasoning += text
    return said


def read(parser: Parser, pieces: Iterable[str]) -> ChoiceText:
    """Feed the pieces to a parser and fold all its parts."""
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return fold([*parts, *parser.finish()])
