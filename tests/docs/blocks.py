"""The code blocks of the pages that people type from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.real.processes import ROOT

PAGES = sorted(
    [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/guides/*.md"), *ROOT.glob("docs/reference/*.md")]
)
"""Every block of these is run, by its language."""

_FENCE = re.compile(r"(?m)^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)``` *$", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block, the line of its first word, and what stands behind its fence."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def name_of(page: Path) -> str:
    """A page as the tests call it."""
    return str(page.relative_to(ROOT))


def blocks_of(page: Path) -> list[Block]:
    """All of a page's blocks, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        inside = re.sub(rf"(?m)^{fence['indent']}", "", fence["text"])
        found.append(
            Block(name_of(page), text.count("\n", 0, fence.start("text")) + 1, fence["language"].strip(), inside)
        )
    assert 2 * len(found) == len(re.findall(r"(?m)^ *```", text)), f"{page}: a fence that is not closed"
    return found
