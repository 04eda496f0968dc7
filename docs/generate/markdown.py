"""The Markdown elements of generated pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown already, except that what would end them is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell(part) for part in line) + " |" for line in lines) + "\n"


def cell(text: str) -> str:
    """Return a text that fits into a cell: on one line, with escaped bars."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return a text as code, in as many backticks as it needs; bars are escaped by `cell`."""
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{text}{ticks}"
