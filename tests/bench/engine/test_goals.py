"""The engine's bars, from rows as a run gives them."""

from __future__ import annotations

from bench.engine.cells import Answer, Cell
from bench.engine.goals import goals
from bench.engine.record import Row, Seen
from bench.engine.table import tables

WIDE = Cell(509, 32)


def row(seconds: dict[Cell, float], *, ours: bool = True, peak: int = 0, last: float = 0.2) -> Row:
    cells = {cell: Seen([Answer(one, 0.2, last, 64)]) for cell, one in seconds.items()}
    return Row(ours, peak_mib=peak, cells=cells)


PEER = row({WIDE: 10.0, Cell(509, 1): 2.0, Cell(1999, 32): 20.0}, ours=False)


def test_bars_are_those_of_the_row_in_bfloat16() -> None:
    default, mine = row({WIDE: 1.0}), row({WIDE: 8.0, Cell(509, 32, apart=True): 40.0}, peak=1200)
    found = {goal.says: goal for goal in goals({"nproxy": default, "nproxy bfloat16": mine, "peer": PEER})}
    wall = found["bfloat16, prompt of 509 tokens, n=32: time by the best peer's"]
    assert (wall.found, wall.verdict) == (0.8, "at least")
    assert found["32 requests by one with n=32"].verdict == "aim"
    assert found["peak RSS, bfloat16"].verdict == "at least"
    assert found["n=32: first token of the last choice by the first's"].found == 1.0
    assert {goal.says for goal in found.values() if goal.found is None} == {
        "bfloat16, prompt of 509 tokens, n=8: time by the best peer's",
        "bfloat16, prompt of 509 tokens, n=1: time by the best peer's",
        "bfloat16, prompt of 1,999 tokens, n=32: time by the best peer's",
        "int8, prompt of 509 tokens, n=32: time by the best peer's",
        "peak RSS, int8",
    }


def test_where_bfloat16_is_the_default_its_row_has_no_name_of_its_own() -> None:
    found = goals({"nproxy": row({WIDE: 9.0}, last=0.9), "peer": PEER})
    assert [(goal.found, goal.verdict) for goal in found[:1]] == [(0.9, "**missed**")]
    assert next(goal for goal in found if "last choice" in goal.says).verdict == "**missed**"


def test_the_page_has_the_bars_that_were_measured_and_no_others() -> None:
    text = tables({"nproxy": row({WIDE: 5.0}), "peer": PEER}, [WIDE])
    assert "| bfloat16, prompt of 509 tokens, n=32: time by the best peer's | 0.85 x | 0.6 x | 0.5 x | aim |" in text
    assert "int8" not in text
    assert "measure" not in tables({"peer": PEER}, [WIDE])
