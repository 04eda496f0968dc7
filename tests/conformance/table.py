"""Writes docs/conformance.md: which tests show which row, in which settings, and which of them with the engine.

python -m tests.conformance.table
"""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.settings import ENGINE, EVERY, Applies

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "conformance.md"

_ROW = re.compile(r"[A-S]\d+")
_TITLES = {"fanout": "fan-out", "native": "native", "one": "n = 1"}

_INTRODUCTION = """\
# What a client observes

One row for each promise, and the tests that show it. A test sends real bytes through the gateway to a scripted server
on loopback, and a strict client reads the answer. Settings: **fan-out**, n choices from a server without `n`;
**native**, n choices from a server that has `n`; **n = 1**, one choice. If a row makes no sense in a setting, the
column gives the reason. `make conformance-mutations` switches off one rule after another and expects these tests to
fail.

In the last column, the built-in engine takes the place of the scripted server, as a real process with a tiny model. If
a row needs something that only a scripted server does, the column says so.

Where a row speaks of *calls*, they are the calls that nproxy makes to servers for one request.

Made by `python -m tests.conformance.table` from `tests/conformance/rows.toml` and the tests' names.
"""


@dataclass(frozen=True)
class Shown:
    """A test of the suite. rows: those in its name. applies: None if it states no settings."""

    name: str
    file: str
    rows: tuple[str, ...]
    applies: Applies | None

    @property
    def engine(self) -> bool:
        """Whether it runs with the engine instead of the scripted server."""
        return self.applies is not None and ENGINE.name in self.applies.names

    @property
    def link(self) -> str:
        return f"[{self.name}](../tests/conformance/{self.file})"


def suite() -> Iterator[Shown]:
    """All tests of the suite that name a row, file by file."""
    for file in [*sorted(HERE.glob("test_*.py")), *sorted(HERE.glob("with_engine/test_*.py"))]:
        path = file.relative_to(HERE)
        module = importlib.import_module(".".join(["tests.conformance", *path.with_suffix("").parts]))
        for name, test in vars(module).items():
            if name.startswith("test_") and callable(test):
                rows = rows_of(name)
                if rows:
                    yield Shown(name, str(path), rows, getattr(test, "applies", None))


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
    """The content of rows.toml. engine: why a row is not tested with the engine."""

    groups: dict[str, str]
    rows: dict[str, str]
    elsewhere: dict[str, tuple[str, str]]
    engine: dict[str, str]


def data() -> Data:
    """Read rows.toml."""
    told = tomllib.loads((HERE / "rows.toml").read_text())
    elsewhere = {row: (rule, file) for row, (rule, file) in told["elsewhere"].items()}
    engine = {row: reason for reason, rows in told["engine"].items() for row in rows}
    return Data(told["groups"], told["rows"], elsewhere, engine)


def page() -> str:
    """The whole text of docs/conformance.md."""
    told, tests = data(), list(suite())
    parts = [_INTRODUCTION]
    for letter, title in told.groups.items():
        parts.append(f"## {letter}. {title}\n")
        parts.append("| row | what holds | settings | tests | with the engine |\n|---|---|---|---|---|")
        for row, rule in told.rows.items():
            if row[0] == letter:
                shown = [test for test in tests if row in test.rows]
                scripted = [test for test in shown if not test.engine]
                links = "<br>".join(test.link for test in scripted)
                parts.append(f"| {row} | {rule} | {_settings(scripted)} | {links} | {_engine(row, shown, told)} |")
        for row, (rule, file) in told.elsewhere.items():
            if row[0] == letter:
                shown = [test for test in tests if row in test.rows]
                parts.append(f"| {row} | {rule} | | [{file}](../{file}) | {_engine(row, shown, told)} |")
        parts.append("")
    return "\n".join(parts)


def _engine(row: str, shown: list[Shown], told: Data) -> str:
    """The tests of a row that use the engine, or why there are none."""
    return "<br>".join(test.link for test in shown if test.engine) or told.engine.get(row, "")


def _settings(shown: list[Shown]) -> str:
    """The settings of a row's tests; if no test runs in some of them, also the reason."""
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
