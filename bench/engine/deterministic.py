"""Measure what deterministic mode costs on the CPU: the same steps with it and without it, alternating.

    python bench/engine/deterministic.py MODEL [--dtype bfloat16] [--rows 1 8 32] [--prompt 509] [--json FILE]

A step is a runner's submit on rows that share a prompt after a fork. Prefill is the whole prompt: one chunk by default;
in deterministic mode chunks of 256 tokens, each a step of its own. The figures are medians, in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.batch import Batch, Chunk, Draw, Row, plan_kv_spans
from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner
from engine.messages import Sampling

_SIZE = 16
_NEW = 64  # tokens that fit behind the prompt
_CHUNK = 256


def main() -> None:
    """Measure both modes, alternating, and print or write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=509)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--note", help="kept with the figures, for example that the machine was not quiet")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()

    blocks = -(-options.prompt // _SIZE) + max(options.rows) * (_NEW // _SIZE + 2)
    runners = {
        name: CpuRunner.load(
            EngineConfig(options.model, dtype=options.dtype, num_blocks=blocks, deterministic=name == "deterministic")
        )
        for name in ("default", "deterministic")
    }
    chance = random.Random(0)
    prompt = tuple(chance.randrange(1000) for _ in range(options.prompt))
    taken: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds):
        for name, runner in runners.items():
            fixed = name == "deterministic"
            taken.setdefault(("prefill", name), []).append(_timed(partial(_prefill, runner, prompt, fixed)))
            for rows in options.rows:
                times = taken.setdefault((f"step, {rows} rows", name), [])
                for new in range(options.steps):
                    batch = _step(prompt, rows, new, fixed)
                    times.append(_timed(partial(runner.submit, batch)))
    figures: dict[str, dict[str, float]] = {}
    for (what, name), times in taken.items():
        figures.setdefault(what, {})[name] = round(statistics.median(times), 2)
    for both in figures.values():
        both["ratio"] = round(both["deterministic"] / both["default"], 2)
    report = {
        "model": Path(options.model).name,
        "dtype": options.dtype,
        "prompt": options.prompt,
        "rounds": options.rounds,
        "steps": options.steps,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load_average": os.getloadavg()[0],
        **({"note": options.note} if options.note else {}),
        "milliseconds": figures,
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    for what, both in figures.items():
        print(f"{what:14}", *(f"{name} {value:8.2f}" for name, value in both.items()))


def _prefill(runner: CpuRunner, prompt: tuple[int, ...], fixed: bool) -> None:
    size = _CHUNK if fixed else len(prompt)
    for start in range(0, len(prompt), size):
        end = min(start + size, len(prompt))
        draws = (Draw(0, 1, end, Sampling()),) if end == len(prompt) else ()
        runner.submit(Batch(chunks=(Chunk(0, prompt[start:end], start, tuple(range(-(-end // _SIZE))), draws),)))


def _step(prompt: tuple[int, ...], rows: int, new: int, fixed: bool) -> Batch:
    """Return the step that writes token `new` of each row (0: the first after the fork)."""
    whole = len(prompt) // _SIZE
    own = _NEW // _SIZE + 2
    at = len(prompt) + new
    fork = []
    for row in range(rows):
        first = -(-len(prompt) // _SIZE) + row * own
        table = (*range(whole), *range(first, first + own))
        draw = Draw(row, row, at + 1, Sampling())
        fork.append(Row(row, 7 * row + new, at, table, draw, cut=whole * _SIZE if fixed else 0))
    return Batch(rows=tuple(fork), kv_spans=plan_kv_spans(fork, _SIZE, gate=64))


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1000


if __name__ == "__main__":
    main()
