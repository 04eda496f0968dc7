"""What was measured, as it is kept in JSON, and the figures that come of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from bench.engine.cells import Answer, Cell


@dataclass(slots=True)
class Seen:
    """A cell at a peer. answers: a round each. wrong: why there is none, or none any more."""

    answers: list[Answer] = field(default_factory=list)
    wrong: str = ""

    @property
    def seconds(self) -> float | None:
        """The median of all rounds; None where one was wrong, or none was."""
        return self._median("seconds")

    @property
    def first(self) -> float | None:
        """Seconds until a choice said something."""
        return self._median("first")

    @property
    def last(self) -> float | None:
        """Seconds until every choice had."""
        return self._median("last")

    @property
    def rate(self) -> float | None:
        """Tokens a second, all choices together, the prompt's time included."""
        return None if self.seconds is None else self.answers[0].tokens / self.seconds

    def _median(self, name: str) -> float | None:
        values: list[float | None] = [getattr(answer, name) for answer in self.answers]
        known = [value for value in values if value is not None]
        return statistics.median(known) if known and len(known) == len(values) and not self.wrong else None


@dataclass(slots=True)
class Row:
    """A peer. missing: why it could not be had."""

    ours: bool
    versions: dict[str, str] = field(default_factory=dict)
    how: str = ""
    missing: str = ""
    peak_mib: int = 0
    cells: dict[Cell, Seen] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        plain = {name: getattr(self, name) for name in ("ours", "versions", "how", "missing", "peak_mib")}
        return {**plain, "cells": [{**asdict(cell), **asdict(seen)} for cell, seen in self.cells.items()]}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """The same back."""
        cells = {}
        for one in plain["cells"]:
            cell = Cell(one["prompt"], one["n"], one["apart"])
            cells[cell] = Seen([Answer(**answer) for answer in one["answers"]], one["wrong"])
        return cls(**{**plain, "cells": cells})


Rows = dict[str, Row]
"""By the peer's name."""


def best(rows: Iterable[Row], cell: Cell) -> float | None:
    """The least seconds of any peer that is not ours; None where none did it."""
    known = [seen.seconds for row in rows if not row.ours and (seen := row.cells.get(cell))]
    return min((seconds for seconds in known if seconds is not None), default=None)


def saved(row: Row, prompt: int, n: int) -> float | None:
    """How many times as long n requests of one choice take as one request with n."""
    together, apart = (row.cells.get(cell) for cell in (Cell(prompt, n), Cell(prompt, n, apart=True)))
    if together is None or apart is None or not together.seconds or not apart.seconds:
        return None
    return apart.seconds / together.seconds


def ratio(row: Row, rows: Iterable[Row], cell: Cell) -> float | None:
    """A row's seconds by those of the best peer: below 1 it is faster."""
    seen, least = row.cells.get(cell), best(rows, cell)
    if seen is None or seen.seconds is None or least is None:
        return None
    return seen.seconds / least
