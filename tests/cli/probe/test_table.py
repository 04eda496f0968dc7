"""The report on terminals: a table, or lines where a table would be cut."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from nproxy.cli.probe.findings import FACTS, Report, completed, yes
from nproxy.cli.probe.table import NARROWEST, show

FOUND = {"available": yes("a question was answered")}
REPORT = Report("http://x/v1", "m", (), "", False, {section: completed(section, FOUND) for section in FACTS}, 1)


@pytest.mark.parametrize("width", [20, NARROWEST - 1, NARROWEST, 120])
def test_every_verdict_is_there_however_narrow_the_terminal_is(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with console.capture() as screen:
        show(REPORT, console)
    printed = screen.get() or console.file.getvalue()  # type: ignore[attr-defined] # plain lines pass the console by
    rows = [line.split() for line in printed.splitlines() if line.split()[:1] == ["answers"]]
    assert [row[:2] for row in rows] == [["answers", "yes"]] * 2
