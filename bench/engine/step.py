"""Time the engine's model alone: decode steps of rows over one shared prompt, prefill, loading, and memory.

    python bench/engine/step.py MODEL [--dtype bfloat16] [--int8] [--rows 1 8 32] [--prompt 509] [--json] [--profile]

A step is CpuRunner.submit on a batch as the scheduler plans it after a fork: the prompt's full blocks are shared, the
rest of each row is its own. Prints the least and the median of `--steps` steps, in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.batch import Batch, Chunk, Draw, Row
from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner
from engine.kv_spans import plan_kv_spans
from engine.messages import Sampling

_NEW = 64  # tokens that fit behind the prompt


def main() -> None:
    """Run the measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    parser.add_argument("--int8", action="store_true", help="weights of one byte")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=509)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--profile", action="store_true", help="print what the widest step's time goes to")
    options = parser.parse_args()

    begin = time.perf_counter()
    size = 16
    blocks = -(-options.prompt // size) + max(options.rows) * (_NEW // size + 2)
    kept: Literal["int8"] | None = "int8" if options.int8 else None
    runner = CpuRunner.load(
        EngineConfig(options.model, dtype=options.dtype, quantization=kept, block_size=size, num_blocks=blocks)
    )
    loaded = time.perf_counter() - begin
    after_load = _peak_rss()
    chance = random.Random(0)
    prompt = tuple(chance.randrange(runner.ready.vocab_size) for _ in range(options.prompt))

    figures = {"prefill": _timed(lambda: _prefill(runner, prompt), 5)}
    for rows in options.rows:
        batches = [_step(prompt, rows, size, new) for new in range(options.steps)]
        figures[f"step, {rows} rows"] = _timed(partial(_submit_next, runner, iter(batches * 2)), options.steps)
    report = {
        "model": Path(options.model).name,
        "dtype": runner.ready.dtype,
        "quantization": kept,
        "prompt": options.prompt,
        "threads": torch.get_num_threads(),
        "cpu": _cpu(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
        "load_seconds": round(loaded, 2),
        "rss_mib_after_load": after_load,
        "rss_mib_peak": _peak_rss(),
        "milliseconds": figures,
    }
    if options.json:
        print(json.dumps(report))
        return
    for key, value in report.items():
        if key != "milliseconds":
            print(f"{key:20} {value}")
    for name, (least, median) in figures.items():
        print(f"{name:20} least {least:8.2f} ms   median {median:8.2f} ms")
    if options.profile:
        _profile(runner, _step(prompt, max(options.rows), size, _NEW // 2))


def _prefill(runner: CpuRunner, prompt: tuple[int, ...]) -> None:
    table = tuple(range(-(-len(prompt) // runner.ready.block_size)))
    draws = (Draw(0, 1, len(prompt), Sampling()),)
    runner.submit(Batch(chunks=(Chunk(0, prompt, 0, table, draws),)))


def _submit_next(runner: CpuRunner, batches: Iterator[Batch]) -> None:
    runner.submit(next(batches))


def _step(prompt: tuple[int, ...], rows: int, size: int, new: int) -> Batch:
    """Return the step that writes token `new` of each row (0: the first after the fork)."""
    shared = tuple(range(len(prompt) // size))
    own = _NEW // size + 2
    at = len(prompt) + new
    fork = []
    for row in range(rows):
        first = -(-len(prompt) // size) + row * own
        table = shared + tuple(range(first, first + own))
        fork.append(Row(row, 7 * row + new, at, table, Draw(row, row, at + 1, Sampling())))
    return Batch(rows=tuple(fork), kv_spans=plan_kv_spans(fork, size, gate=64))


def _timed(call: Callable[[], object], times: int) -> tuple[float, float]:
    call()
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        took.append((time.perf_counter() - begin) * 1000)
    return round(min(took), 2), round(statistics.median(took), 2)


def _profile(runner: CpuRunner, batch: Batch) -> None:
    with torch.profiler.profile() as profile:
        for _ in range(5):
            runner.submit(batch)
    print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=16, max_name_column_width=40))


def _peak_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _cpu() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} x {names[0].partition(':')[2].strip() if names else platform.machine()}"


if __name__ == "__main__":
    main()
