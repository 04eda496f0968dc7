"""Measure what deterministic mode costs on the CPU: the same steps without it, with it, and with it by torch's kernels,
alternating.

    python bench/engine/deterministic.py MODEL [--numbers bfloat16] [--rows 1 8 32] [--prompt 509] [--json FILE]

A step is a runner's submit on rows that share a prompt after a fork. Prefill is the whole prompt: one chunk by default;
in deterministic mode chunks of 256 tokens, each a step of its own. The figures are medians, in milliseconds; ratios are
to the mode that is off.
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
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.batch import Batch, Chunk, Draw, Row
from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner
from engine.errors import ConfigError
from engine.kv_spans import plan_kv_spans
from engine.messages import Sampling

_SIZE = 16
_NEW = 64  # tokens that fit behind the prompt
_CHUNK = 256


def main() -> None:
    """Measure both modes, alternating, and print or write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--numbers", default="bfloat16", choices=["float32", "bfloat16", "int8"])
    parser.add_argument("--without-torch", action="store_true", help="leave out torch's kernels")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=509)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--note", help="kept with the figures, for example that the machine was not quiet")
    parser.add_argument("--json", type=Path, help="write the figures there, beside those of other numbers")
    options = parser.parse_args()

    blocks = -(-options.prompt // _SIZE) + max(options.rows) * (_NEW // _SIZE + 2)
    settings = {"quantization": "int8"} if options.numbers == "int8" else {"dtype": options.numbers}
    plain = EngineConfig(options.model, num_blocks=blocks, **settings)
    modes = {
        "default": plain,
        "deterministic": replace(plain, deterministic=True),
        "by torch": replace(plain, deterministic=True, kernels="torch"),
    }
    if options.without_torch:
        del modes["by torch"]
    runners: dict[str, CpuRunner] = {}
    for name, config in modes.items():
        try:
            runners[name] = CpuRunner.load(config)
        except ConfigError as error:
            print(f"{name}: {error}", file=sys.stderr)
    chance = random.Random(0)
    prompt = tuple(chance.randrange(1000) for _ in range(options.prompt))
    taken: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds):
        for name, runner in runners.items():
            fixed = modes[name].deterministic
            taken.setdefault(("prefill", name), []).append(_timed(partial(_prefill, runner, prompt, fixed)))
            for rows in options.rows:
                times = taken.setdefault((f"step, {rows} rows", name), [])
                for new in range(options.steps):
                    batch = _step(prompt, rows, new, fixed)
                    times.append(_timed(partial(runner.submit, batch)))
    figures: dict[str, dict[str, float]] = {}
    for (what, name), times in taken.items():
        figures.setdefault(what, {})[name] = round(statistics.median(times), 2)
    ratios = {
        what: {name: round(time / times["default"], 2) for name, time in times.items() if name != "default"}
        for what, times in figures.items()
    }
    report = {
        "model": Path(options.model).name,
        "numbers": options.numbers,
        "dtype": runners["default"].ready.dtype,
        "kernels": {name: runner.ready.kernels for name, runner in runners.items()},
        "prompt": options.prompt,
        "rounds": options.rounds,
        "steps": options.steps,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load_average": os.getloadavg()[0],
        **({"note": options.note} if options.note else {}),
        "milliseconds": figures,
        "ratios": ratios,
    }
    if options.json:
        others = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(json.dumps(others | {options.numbers: report}, indent=2) + "\n")
    conditions = {name: value for name, value in report.items() if name not in ("milliseconds", "ratios")}
    print(json.dumps(conditions))
    for what, medians in figures.items():
        print(f"{what:14}", *(f"{name} {value:8.2f}" for name, value in medians.items()), ratios[what])


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
