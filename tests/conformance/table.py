"""Writes docs/conformance.md: which row is shown by which tests, and in which settings.

python -m tests.conformance.table
"""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.settings import EVERY, Applies

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "conformance.md"

_ROW = re.compile(r"[A-R]\d+")
_TITLES = {"fanout": "fan-out", "native": "native", "one": "n = 1"}

_INTRODUCTION = """\
# What a client observes

One row for each promise, and the tests that show it: real client bytes through the gateway to a scripted server on
loopback and back, read by a client that forgives nothing. Settings: **fan-out**, n choices from a server that knows
one; **native**, from a server that has `n`; **n = 1**, one choice. Where a row makes no sense in a setting, the reason
stands beside it. `make conformance-mutations` switches off one rule after another and expects these tests to fail.

Made by `python -m tests.conformance.table` from `tests/conformance/rows.toml` and the tests' names.
"""


@dataclass(frozen=True)
class Shown:
    """A test of the suite. rows: those that its name names. applies: None where it has no settings."""

    name: str
    file: str
    rows: tuple[str, ...]
    applies: Applies | None


def suite() -> Iterator[Shown]:
    """All tests of the suite that name a row, file by file."""
    for file in sorted(HERE.glob("test_*.py")):
        module = importlib.import_module(f"tests.conformance.{file.stem}")
        for name, test in vars(module).items():
            if name.startswith("test_") and callable(test):
                rows = rows_of(name)
                if rows:
                    yield Shown(name, file.name, rows, getattr(test, "applies", None))


def rows_of(name: str) -> tuple[str, ...]:
    """The rows at the beginning of a test's name."""
    rows = []
    for word in name.removeprefix("test_").split("_"):
        if _ROW.fullmatch(word) is None:
            break
        rows.append(word)
    return tuple(rows)


@dataclass(frozen=True)
class Data:
    """rows.toml."""

    groups: dict[str, str]
    rows: dict[str, str]
    elsewhere: dict[str, tuple[str, str]]


def data() -> Data:
    """Read rows.toml."""
    told = tomllib.loads((HERE / "rows.toml").read_text())
    return Data(told["groups"], told["rows"], {row: (rule, file) for row, (rule, file) in told["elsewhere"].items()})


def page() -> str:
    """The whole of docs/conformance.md."""
    told, tests = data(), list(suite())
    parts = [_INTRODUCTION]
    for letter, title in told.groups.items():
        parts.append(f"## {letter}. {title}\n")
        parts.append("| row | what holds | settings | tests |\n|---|---|---|---|")
        for row, rule in told.rows.items():
            if row[0] == letter:
                shown = [test for test in tests if row in test.rows]
                links = "<br>".join(f"[{test.name}](../tests/conformance/{test.file})" for test in shown)
                parts.append(f"| {row} | {rule} | {_settings(shown)} | {links} |")
        for row, (rule, file) in told.elsewhere.items():
            if row[0] == letter:
                parts.append(f"| {row} | {rule} | | [{file}](../{file}) |")
        parts.append("")
    return "\n".join(parts)


def _settings(shown: list[Shown]) -> str:
    """The settings of a row's tests, and why some are left out, where no test runs in them."""
    applied = [test.applies for test in shown if test.applies is not None]
    names = [setting.name for setting in EVERY if any(setting.name in one.names for one in applied)]
    told = ", ".join(_TITLES[name] for name in names)
    if len(names) == len(EVERY):
        return told
    widest = max(applied, key=lambda one: len(one.names), default=None)
    if widest is None:
        return ""
    reason = widest.why if set(names) == set(widest.names) else "it is about several choices"
    return "; ".join(part for part in (told, reason) if part)


if __name__ == "__main__":
    PAGE.write_text(page())
