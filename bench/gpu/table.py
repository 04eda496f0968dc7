"""The output of a run: one result per measure, a table to read, JSON for the record."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.gpu.cases import BY_KEY, MEASURES


@dataclass(frozen=True, slots=True)
class Result:
    """What one part found for one measure, or for a check under its own name.

    value: in the measure's unit; None if it could not be measured, and then `note` says why. goal: of a check, or of a
    measure whose goal depends on the case. detail: the parts of the value, for the JSON.
    """

    key: str
    value: float | None
    note: str = ""
    goal: float | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """Return the result as a line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, line: str) -> Result:
        """Return the result that such a line holds."""
        return cls(**json.loads(line))


def met(result: Result) -> bool | None:
    """Whether a result reaches its goal, which for a check is the largest error; None if there is no goal."""
    measure = BY_KEY.get(result.key)
    goal = result.goal if result.goal is not None or measure is None else measure.goal
    if result.value is None:
        return None if goal is None and measure is not None else False
    if goal is None:
        return None
    return result.value >= goal if measure is not None and measure.sense == ">=" else result.value <= goal


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of cells as a table: the first and the last column left-aligned, the others right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        first = row[0].ljust(widths[0])
        figures = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:], strict=True)]
        lines.append("  ".join([first, *figures, row[-1]]).rstrip())
    return "\n".join(lines)


def failure(error: Exception, most: int = 100) -> str:
    """Return an exception in one line of at most so many characters."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:most]


def fields_text(one: Any) -> str:
    """Return the fields of a dataclass with slots that are not None, as text."""
    return " ".join([f"{name}={getattr(one, name)}" for name in one.__slots__ if getattr(one, name) is not None])


_WORDS = {True: "yes", False: "NO", None: ""}


def render(results: Iterable[Result], predicted: Mapping[str, float], *, judged: bool = True) -> str:
    """Return the table: the checks first, the failed ones listed; then the measures in their fixed order.

    judged: whether figures are compared with their goals; made-up figures are not.
    """
    found = list(results)
    checks = [result for result in found if result.key not in BY_KEY]
    by_key = {result.key: result for result in found if result.key in BY_KEY}
    failed = [check for check in checks if not met(check)]
    head = ["measure", "unit", "measured", "predicted", "goal", "met", "note"]
    rows = [head, ["checks that failed", "", str(len(failed)), "", "<= 0", _WORDS[not failed], f"of {len(checks)}"]]
    rows += [[f"  {one.key}", "error", _figure(one.value), "", _figure(one.goal), "NO", one.note] for one in failed]
    for measure in MEASURES:
        result = by_key.get(measure.key, Result(measure.key, None, "not run"))
        goal = measure.goal if result.goal is None else result.goal
        wanted = "" if goal is None else f"{measure.sense} {_figure(goal)}"
        word = _WORDS[met(result)] if judged and measure.key in by_key else ""
        guess = _figure(predicted[measure.key]) if measure.key in predicted else ""
        rows.append([measure.what, measure.unit, _figure(result.value), guess, wanted, word, result.note])
    return columns(rows)


def report(results: Iterable[Result], predicted: Mapping[str, float], conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same for a file: the conditions first, then every result with its parts."""
    told = []
    for result in results:
        measure = BY_KEY.get(result.key)
        told.append(
            asdict(result)
            | {
                "what": measure.what.strip() if measure else "correctness",
                "unit": measure.unit if measure else "error",
                "goal": result.goal if result.goal is not None or measure is None else measure.goal,
                "predicted": predicted.get(result.key),
                "met": met(result),
            }
        )
    return {"conditions": dict(conditions), "results": told}
