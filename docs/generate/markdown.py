"""The little Markdown that generated pages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown already, but for what would end them."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell(part) for part in line) + " |" for line in lines) + "\n"


def cell(text: str) -> str:
    """A text that stays within its cell: on one line, with its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """A text as code, in as many backticks as it needs; no cell's end within, see `cell`."""
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{text}{ticks}"
