"""What parsers return: the parts of an answer, in the order in which they were written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """More of what is said to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the model's reasoning before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A call begins. index: 0, 1, ... within its choice. id: the call's own; sent once, like its name."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """More of the arguments' JSON text, of the call that began last."""

    index: int
    text: str


Part = Content | Reasoning | ToolStart | ToolArguments


class Parser(Protocol):
    """Splits one choice's text into parts as it comes.

    No part has an empty text; consecutive parts may be of one kind.
    """

    def feed(self, text: str) -> list[Part]:
        """Add text; return the parts that are certain now."""

    def finish(self) -> list[Part]:
        """End the choice: return the rest. Nothing may be fed after it."""


class Plain:
    """The parser of a family without marks: everything is content."""

    __slots__ = ()

    def feed(self, text: str) -> list[Part]:
        """Pass the text through."""
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        """Return nothing, because nothing was held back."""
        return []
