"""Time the planning of a step's decode attention, on the host alone: the fork tree's walk and the device's work list.

    python bench/engine/plan.py [--sequences 256] [--prompt 2003] [--steps 200]

Each shape decodes for --steps steps. As in the engine, a sequence takes a block every 16 tokens and gets a new table
then; the sequences of a shape do so at different steps. The list is made for 32 query heads over 8 key heads of 128 on
132 multiprocessors. Prints conditions, medians and minima in microseconds, and writes them to bench/results/plan.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from engine.batch import Draw, Row  # noqa: E402 - runs from a checkout
from engine.device.worklist import Tables, Tiling, work_list  # noqa: E402
from engine.kv_spans import plan_kv_spans  # noqa: E402
from engine.messages import Sampling  # noqa: E402

BLOCK = 16
GATE = 64
TILING = Tiling(group=4, wide=64, narrow=16, fill=132 * 2 // 8)
DRAW = Draw(0, 0, 0, Sampling())


class Pool:
    """It hands out block numbers."""

    def __init__(self) -> None:
        self.used = 0

    def take(self, count: int) -> tuple[int, ...]:
        self.used += count
        return tuple(range(self.used - count, self.used))


def forks(groups: int, choices: int, prompt: int, pool: Pool) -> list[Row]:
    """Return rows just behind their forks; row i of the list has i % 16 new tokens more than the first."""
    rows: list[Row] = []
    for _ in range(groups):
        shared = pool.take(prompt // BLOCK)
        for _ in range(choices):
            position = prompt + len(rows) % BLOCK
            own = pool.take(position // BLOCK + 1 - len(shared))
            rows.append(Row(len(rows), 1, position, shared + own, DRAW))
    return rows


def longer(row: Row, pool: Pool) -> Row:
    """Return the row one token later."""
    position = row.position + 1
    return replace(row, position=position, blocks=row.blocks if position % BLOCK else row.blocks + pool.take(1))


def measured(groups: int, choices: int, prompt: int, steps: int) -> dict[str, Any]:
    """Return the median and the minimum of each part of the planning, and the sizes of the last list."""
    pool, tables = Pool(), Tables()
    rows = forks(groups, choices, prompt, pool)
    took: dict[str, list[float]] = {"walk": [], "tables": [], "list": [], "all": []}
    for _ in range(steps):
        begin = time.perf_counter()
        kv_spans = plan_kv_spans(rows, BLOCK, gate=GATE)
        walked = time.perf_counter()
        arrays = tables.step(rows)
        known = time.perf_counter()
        work = work_list(rows, kv_spans, arrays, BLOCK, TILING)
        end = time.perf_counter()
        for name, seconds in zip(took, (walked - begin, known - walked, end - known, end - begin), strict=True):
            took[name].append(seconds * 1e6)
        rows = [longer(row, pool) for row in rows]
    return {
        "groups": groups,
        "choices": choices,
        "items": len(work.items),
        "partial_results": len(work.part_slots),
        "blocks": len(work.blocks),
        "microseconds": {
            name: {"median": round(statistics.median(times)), "least": round(min(times))}
            for name, times in took.items()
        },
    }


def main() -> None:
    """Run the measurements, print them and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=2003)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    conditions = {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "prompt": options.prompt,
        "steps": options.steps,
        "load_average_before": round(os.getloadavg()[0], 2),
    }
    print("  ".join(f"{name} {value}" for name, value in conditions.items()))
    count = options.sequences
    shapes = [(count, 1), (max(count // 32, 1), 32), (1, count), (1, 32), (1, 1)]
    results = [measured(*shape, options.prompt, options.steps) for shape in shapes]
    for result in results:
        parts = "  ".join(
            f"{name} {took['median']:5} ({took['least']})" for name, took in result["microseconds"].items()
        )
        print(f"{result['groups']:3} groups of {result['choices']:3}  {result['items']:5} items  {parts}")
    path = ROOT / "bench" / "results" / "plan.json"
    path.write_text(json.dumps({"conditions": conditions, "shapes": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
