"""The code blocks of the pages, from which readers type."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tests.real.processes import ROOT

_NOT_OURS = {"node_modules", "swagger-ui", "build", "shared"}


def written(*endings: str) -> list[Path]:
    """Return the repository's files with these endings, sorted, without third-party files and build outputs."""
    found = []
    for folder, below, names in os.walk(ROOT):
        below[:] = [name for name in below if name not in _NOT_OURS and not name.startswith(".")]
        found += [Path(folder, name) for name in names if name.endswith(endings)]
    return sorted(found)


PAGES = written(".md")
"""Every block of these pages is run, according to its language."""

_UNSEEN = re.compile(r"(?m)^ *(?:> *```|~~~|<pre)|\n\n(?: {4,}|\t)(?:\$ )?(?:curl|make|nproxy|pip|python3?|sh) ")
"""Other ways to write a block, which the tests would not find."""

_FENCE = re.compile(r"(?m)^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)``` *$", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, the line of its first text, its language and its text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def name_of(page: Path) -> str:
    """Return a page's name in the tests."""
    return str(page.relative_to(ROOT))


def blocks_of(page: Path) -> list[Block]:
    """Return all blocks of a page, in order; ValueError for a block that is not fenced, or a fence left open."""
    text = page.read_text(encoding="utf-8")
    if (unseen := _UNSEEN.search(text)) is not None:
        raise ValueError(f"{page}: a block that is not found: {unseen[0].strip()!r}")
    found = []
    for fence in _FENCE.finditer(text):
        inside = re.sub(rf"(?m)^{fence['indent']}", "", fence["text"])
        found.append(
            Block(name_of(page), text.count("\n", 0, fence.start("text")) + 1, fence["language"].strip(), inside)
        )
    if 2 * len(found) != len(re.findall(r"(?m)^ *```", text)):
        raise ValueError(f"{page}: a fence that is not closed")
    return found
