"""The report as a table on a terminal, and as plain lines in a pipe or on a narrow terminal."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nproxy.cli.printable import printable
from nproxy.cli.probe.findings import FACTS, UNASKED, Report

TITLES = {"server": "server", "chat": "/chat/completions", "completions": "/completions"}
NARROWEST = 60
"""Minimum columns of a terminal for a table; narrower ones get plain lines, which the terminal itself wraps."""
_STYLES = {"yes": "green", "no": "red", "unknown": "dim"}


def show(report: Report, console: Console) -> None:
    """Print the report, without facts that were not asked; an endpoint that does not answer takes one line."""
    if console.is_terminal and console.width >= NARROWEST:
        console.print(Text(_heading(report), "bold"))
        for table in _tables(report):
            console.print()
            console.print(table)
        return
    lines = [_heading(report)]
    for section, rows in _rows(report).items():
        lines += ["", TITLES[section]]
        lines += [f"  {title:<34} {verdict:<8} {how}" for title, verdict, how in rows]
    click.echo("\n".join(lines), file=console.file)


def _heading(report: Report) -> str:
    server = f", {report.server}" if report.server else ""
    return f"{report.url}{server}, asked {report.questions} times for {printable(report.model)}"


def _rows(report: Report) -> dict[str, list[tuple[str, str, str]]]:
    rows: dict[str, list[tuple[str, str, str]]] = {}
    for section, facts in FACTS.items():
        found = report.sections[section]
        shown = [(title, found[name]) for name, title in facts.items() if found[name].how not in UNASKED]
        rows[section] = [(title, finding.verdict, finding.how) for title, finding in shown]
    return rows


def _tables(report: Report) -> list[Table]:
    tables = []
    for section, rows in _rows(report).items():
        table = Table(title=TITLES[section], title_justify="left", box=None, pad_edge=False, show_header=False)
        table.add_column(min_width=34, no_wrap=True)
        table.add_column(min_width=8, no_wrap=True)
        table.add_column()
        for title, verdict, how in rows:
            table.add_row(title, Text(verdict, _STYLES[verdict]), Text(how))
        tables.append(table)
    return tables
