"""The engine's goals on a CPU, and what was measured."""

from __future__ import annotations

from bench.engine.cells import Cell
from bench.engine.record import Row, Rows, ratio, saved
from bench.goals import Goal

SHORT, LONG, WIDE = 509, 1999, 32
SAME_STEP = 1.05, 1.02
"""The most by which the last choice's first token may be later than the first's, as ratios: answers of the same step
are read one after the other."""
MIB = 1.5e9 / (1 << 20), 1e9 / (1 << 20)


def goals(rows: Rows) -> list[Goal]:
    """Return the goals in the order of the page: for the row with 16-bit weights, for int8, and for both in memory."""
    sixteen = rows.get("nproxy bfloat16", rows.get("nproxy", Row(True)))
    eight = rows.get("nproxy int8", Row(True))
    together = sixteen.cells.get(Cell(SHORT, WIDE))

    def to_best(row: Row, prompt: int, n: int) -> float | None:
        return ratio(row, rows.values(), Cell(prompt, n))

    later = together.last / together.first if together and together.first and together.last else None
    return [
        *(
            Goal(f"{kind}, prompt of {prompt:,} tokens, n={n}: time by the best peer's", *bars, found, "x", False)
            for kind, prompt, n, bars, found in (
                ("bfloat16", SHORT, WIDE, (0.85, 0.6), to_best(sixteen, SHORT, WIDE)),
                ("bfloat16", SHORT, 8, (0.95, 0.75), to_best(sixteen, SHORT, 8)),
                ("bfloat16", SHORT, 1, (1.15, 1.0), to_best(sixteen, SHORT, 1)),
                ("bfloat16", LONG, WIDE, (0.7, 0.45), to_best(sixteen, LONG, WIDE)),
                ("int8", SHORT, WIDE, (0.7, 0.5), to_best(eight, SHORT, WIDE)),
            )
        ),
        Goal(f"n={WIDE}: first token of the last choice by the first's", *SAME_STEP, later, "x", False),
        Goal(f"{WIDE} requests by one with n={WIDE}", 3, 5, saved(sixteen, SHORT, WIDE), "x", True),
        *(
            Goal(f"peak RSS, {kind}", *MIB, row.peak_mib or None, "MiB", False)
            for kind, row in (("bfloat16", sixteen), ("int8", eight))
        ),
    ]
