"""The measurements as they are kept in JSON, and the figures derived from them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from bench.engine.cells import Answer, Cell


@dataclass(slots=True)
class Seen:
    """A peer's answers to a cell. answers: one per round. wrong: why there are none, or why the rounds stopped."""

    answers: list[Answer] = field(default_factory=list)
    wrong: str = ""

    @property
    def seconds(self) -> float | None:
        """The median of all rounds; None if a round was wrong or none was run."""
        return self._median("seconds")

    @property
    def first(self) -> float | None:
        """Seconds until the first choice had its first text; None as for `seconds`, or if the peer does not tell."""
        return self._median("first")

    @property
    def last(self) -> float | None:
        """Seconds until every choice had its first text; None in the same cases."""
        return self._median("last")

    @property
    def rate(self) -> float | None:
        """Tokens per second of all choices together, the prefill included."""
        return None if self.seconds is None else self.answers[0].tokens / self.seconds

    def _median(self, name: str) -> float | None:
        values: list[float | None] = [getattr(answer, name) for answer in self.answers]
        known = [value for value in values if value is not None]
        return statistics.median(known) if known and len(known) == len(values) and not self.wrong else None


@dataclass(slots=True)
class Row:
    """A peer. missing: why it could not be run."""

    ours: bool
    versions: dict[str, str] = field(default_factory=dict)
    how: str = ""
    missing: str = ""
    peak_mib: int = 0
    cells: dict[Cell, Seen] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain values."""
        plain = {name: getattr(self, name) for name in ("ours", "versions", "how", "missing", "peak_mib")}
        return {**plain, "cells": [{**asdict(cell), **asdict(seen)} for cell, seen in self.cells.items()]}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Return the row that such values describe."""
        cells = {}
        for one in plain["cells"]:
            cell = Cell(one["prompt"], one["n"], one["apart"])
            cells[cell] = Seen([Answer(**answer) for answer in one["answers"]], one["wrong"])
        return cls(**{**plain, "cells": cells})


Rows = dict[str, Row]
"""The rows by their peers' names."""


def best(rows: Iterable[Row], cell: Cell) -> float | None:
    """Return the least seconds of any peer that is not ours; None if none has a result."""
    known = [seen.seconds for row in rows if not row.ours and (seen := row.cells.get(cell))]
    return min((seconds for seconds in known if seconds is not None), default=None)


def saved(row: Row, prompt: int, n: int) -> float | None:
    """Return the time of n requests for one choice, divided by the time of one request with n; None if not known."""
    together, apart = (row.cells.get(cell) for cell in (Cell(prompt, n), Cell(prompt, n, apart=True)))
    if together is None or apart is None or not together.seconds or not apart.seconds:
        return None
    return apart.seconds / together.seconds


def ratio(row: Row, rows: Iterable[Row], cell: Cell) -> float | None:
    """Return a row's seconds divided by the best peer's, below 1 if the row is faster; None if not known."""
    seen, least = row.cells.get(cell), best(rows, cell)
    if seen is None or seen.seconds is None or least is None:
        return None
    return seen.seconds / least
