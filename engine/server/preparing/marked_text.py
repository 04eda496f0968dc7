"""Rules of texts in which a model's marks may be, as pieces of a grammar."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from engine.server.asking.structure import text_rule, token_rule

TokenOf = Callable[[str], int | None]
"""Returns the id of a mark that is a special token, None for one that is ordinary text."""

MARK = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])")
_LINE_END = re.compile("(\n)")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, and the lines that define what it uses."""

    start: str
    lines: tuple[str, ...] = ()


def text_with_marks(text: str, token_of: TokenOf, *, loose: bool = False) -> str:
    """Return the rule of a text with marks in it; empty for no text. loose: its line ends may be left out."""
    rules = []
    for piece in filter(None, MARK.split(text)):
        number = token_of(piece)
        if number is not None:
            rules.append(token_rule(number))
        elif loose:
            parts = [part for part in _LINE_END.split(piece) if part]
            rules += [text_rule(part) + ("?" if part == "\n" else "") for part in parts]
        else:
            rules.append(text_rule(piece))
    return " ".join(rules)
