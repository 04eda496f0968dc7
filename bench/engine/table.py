"""The figures as Markdown: seconds by prompt length and n, their ratios to the best peer, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.engine.cells import Cell
from bench.engine.goals import goals
from bench.engine.record import Row, Rows, ratio, saved

NONE = "-"


def tables(rows: Rows, cells: Sequence[Cell]) -> str:
    """Return one table per prompt length, what n saves, the goals, the reasons of dashes, and how each was run."""
    parts = [_grid(rows, prompt, cells) for prompt in dict.fromkeys(cell.prompt for cell in cells)]
    parts += [_apart(rows, cell) for cell in cells if cell.apart]
    parts.append(_goals(rows))
    return "\n\n".join(part for part in [*parts, _reasons(rows), _how(rows)] if part) + "\n"


def _grid(rows: Rows, prompt: int, cells: Sequence[Cell]) -> str:
    grid = [cell for cell in cells if cell.prompt == prompt and not cell.apart]
    wide = grid[-1]
    head = [f"prompt of {prompt:,} tokens", *(f"n={cell.n}" for cell in grid)]
    head += [f"tokens/s, n={wide.n}", f"first token of the first / last choice, n={wide.n}", "peak RSS"]
    lines = []
    for name, row in rows.items():
        seen = row.cells.get(wide)
        times = [_seconds(row, cell) for cell in grid]
        rate = _number(seen.rate if seen else None, "{:,.0f}")
        firsts = f"{_number(seen.first if seen else None)} / {_number(seen.last if seen else None)} s"
        peak = f"{row.peak_mib:,} MiB" if row.peak_mib else NONE
        lines.append([name, *times, rate, NONE if firsts == f"{NONE} / {NONE} s" else firsts, peak])
    for name, row in rows.items():
        if row.ours and not row.missing:
            by = [_number(ratio(row, rows.values(), cell), "{:.2f}x") for cell in grid]
            lines.append([f"{name}, by the best peer's", *by, "", "", ""])
    return _table(head, lines)


def _apart(rows: Rows, cell: Cell) -> str:
    one = Cell(cell.prompt, cell.n)
    head = [f"prompt of {cell.prompt:,} tokens", f"n={cell.n}", f"{cell.n} requests, {cell.n} prompts", "ratio"]
    lines = []
    for name, row in rows.items():
        by = _number(saved(row, cell.prompt, cell.n), "{:.1f}x")
        lines.append([name, _seconds(row, one), _seconds(row, cell), by])
    return _table(head, lines)


def _goals(rows: Rows) -> str:
    known = [goal for goal in goals(rows) if goal.found is not None]
    lines = [[goal.says, *map(goal.shown, (goal.least, goal.aim, goal.found)), goal.verdict] for goal in known]
    return _table(["measure", "at least", "aim", "found", "holds"], lines) if lines else ""


def _reasons(rows: Rows) -> str:
    told = [f"- {name}: {row.missing}" for name, row in rows.items() if row.missing]
    for name, row in rows.items():
        told += [f"- {name}, {cell.name}: {seen.wrong}" for cell, seen in row.cells.items() if seen.wrong]
    return "\n".join(["What is missing:", "", *told]) if told else ""


def _how(rows: Rows) -> str:
    run = [
        f"- {name}: `{row.how}` ({', '.join(f'{package} {number}' for package, number in row.versions.items())})"
        for name, row in rows.items()
        if row.how
    ]
    return "\n".join(["How each was run:", "", *run]) if run else ""


def _seconds(row: Row, cell: Cell) -> str:
    seen = row.cells.get(cell)
    return _number(seen.seconds if seen else None, "{:.2f} s")


def _number(value: float | None, form: str = "{:.2f}") -> str:
    return NONE if value is None else form.format(value)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join([_line(head), "|" + "---|" * len(head), *map(_line, lines)])


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"
