"""Finds the links of pages, and the files that they name, that lead nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.real.processes import ROOT

_FENCED = re.compile(r"(?ms)^ *```.*?^ *```")
_LINKS = re.compile(r"""\]\(\s*([^)\s]+)\s*\)|(?m:^\[[^\]]+\]:\s*(\S+))|\b(?:href|src)="([^"]+)\"""")
_TICKED = re.compile(r"`([\w.-]*[\w./-]*(?:\.(?:py|js|mjs|md|yaml|yml|json|toml|sh)|\w/))`")
_ROOMS = "bench|deploy|docs|engine|examples|grafana|nproxy|requirements|tests|tools"
_PATHS = re.compile(
    rf"(?<![\w./:@$-])((?:{_ROOMS})/[\w./-]+\.(?:css|js|json|md|mjs|py|sh|toml|txt|ya?ml)\b)(?:#([\w-]+))?"
)


def broken_links(page: Path) -> list[str]:
    """Return the page's links to missing files and headings; links to other hosts are not checked."""
    broken = []
    for found in _LINKS.finditer(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        target = found[1] or found[2] or found[3]
        file, _, anchor = target.partition("#")
        if "://" not in target and not _leads(page.parent / file if file else page, anchor):
            broken.append(target)
    return broken


def missing_paths(file: Path) -> list[str]:
    """Return the missing paths that a file names, from the root or a folder above it; NAME stands for any name."""
    return [
        found[0]
        for found in _PATHS.finditer(file.read_text(encoding="utf-8"))
        if not re.search("[A-Z]{3}", Path(found[1]).stem.replace("README", ""))
        and not any(_leads(above / found[1], found[2] or "") for above in file.parents if above.is_relative_to(ROOT))
    ]


def missing_files(text: str) -> list[str]:
    """Return the files and folders in backticks that are not where a reader looks for them.

    That is below the root, below nproxy/, or beside something that the same row or paragraph names before.
    """
    return [name for part in re.split(r"\n(?=\||- |\n)", text) for name in _missing(part)]


def _missing(part: str) -> Iterator[str]:
    places = [ROOT / "nproxy", ROOT]
    for name in _TICKED.findall(part):
        found = [place / name for place in reversed(places) if (place / name).exists()]
        if found:
            places += [found[0].parent.parent, found[0].parent, *found[:1]]
        elif not name.startswith("/"):  # a name with a slash first is an endpoint
            yield name


def _leads(there: Path, anchor: str) -> bool:
    if not there.exists():
        return False
    return not anchor or there.suffix != ".md" or anchor in _anchors(there)


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings as GitHub makes them; equal headings are numbered."""
    anchors: list[str] = []
    for heading in re.findall(r"(?m)^#+ (.+)$", _FENCED.sub("", page.read_text(encoding="utf-8"))):
        words = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        again = sum(one == anchor or re.fullmatch(rf"{re.escape(anchor)}-\d+", one) is not None for one in anchors)
        anchors.append(f"{anchor}-{again}" if again else anchor)
    return set(anchors)
