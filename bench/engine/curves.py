"""Measure how the engine's time grows with n and with the prompt's length on a CPU, and which part of a step grows.

    python -m bench.engine.curves [--n 1,2,4,...,128] [--prompts 101,...,7993] [--quantization int8]

This runs the engine's core alone, without HTTP and other processes: n choices over a prompt of 509 tokens, then prompts
of other lengths with one choice and with eight. Reported are the seconds until the first tokens, the median of the
steps after them, and the parts of a step's time by torch's profiler: products with weights; attention; draws, which are
the operations over the whole vocabulary; the other operations; the host, which is Python around them. Prints tables
and, if nothing was left out, writes them to bench/results/curves.json and docs/performance.md.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from bench.engine.options import as_the_engine_runs, numbers
from bench.engine.page import conditions, put, taken, write
from bench.engine.weights import packed
from bench.steal import TRIES, undisturbed
from engine.backends import Machine, cpu_backend
from engine.config import EngineConfig
from engine.core import Core
from engine.loading import load_runner
from engine.messages import Abort, Add, Sampling
from engine.native.backend import compiled
from engine.native.build import Kernels, Timings

WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTHS = (101, 251, 509, 1009, 1999, 3989, 7993)
BASE, FEW = 509, (1, 8)
STEPS, PROFILED = 24, 8
PARTS = ("products", "attention", "draws", "other", "host")
NATIVE = ("norm", "silu_mul", "rotate_store", "attention", "exponentials", "draws", "log_probabilities", "product")


@dataclass(frozen=True, slots=True)
class Point:
    """One measured point of a curve.

    first: seconds until the first tokens. step: the median milliseconds of a step after them. parts: the milliseconds
    of such a step, by PARTS.
    """

    prompt: int
    n: int
    first: float
    step: float
    parts: Mapping[str, float]

    @property
    def rate(self) -> float:
        """Tokens per second of all choices together, during decoding."""
        return self.n * 1000 / self.step


def part_of(operation: str, shapes: Sequence[Sequence[int]], vocab: int) -> str:
    """Return the part that an operation's own time belongs to, by its name in torch's profiler and its input shapes."""
    name = operation.partition("::")[2] or operation
    if "linear" in name or "int8pack" in name or name in ("mm", "addmm", "_int_mm", "product"):
        return "products"
    if name in ("exponentials", "draws", "log_probabilities") or any(vocab in shape[-1:] for shape in shapes):
        return "draws"
    if "bmm" in name or "scaled_dot_product" in name or name in ("_softmax", "attention"):
        return "attention"
    return "other"


class Shown:
    """A function in C that torch's profiler sees as an operation while `watched` is True."""

    watched = False

    def __init__(self, name: str, function: Callable[..., None]) -> None:
        self._name, self._function = f"native::{name}", function

    def __call__(self, *arguments: object) -> None:
        """Call the function."""
        if not Shown.watched:
            self._function(*arguments)
            return
        with torch.profiler.record_function(self._name):
            self._function(*arguments)


def show(config: EngineConfig) -> Kernels | None:
    """Make the kernels in C visible to torch's profiler, if the engine will use them, and return them.

    Call this before the engine is loaded. The calls that run all layers in C stay invisible; `timings` of the returned
    kernels counts their time.
    """
    backend = cpu_backend(config, Machine.here())
    native = compiled(config, backend.dtype) if backend.kernels == "native" else None
    if native is not None:
        for name in NATIVE:
            setattr(native, name, Shown(name, getattr(native, name)))
    return native


def shares(own: Iterable[tuple[str, float]], wall: float) -> dict[str, float]:
    """Return the share of each part in a time: the operations' own times, by part, and the rest of `wall` as host.

    Both arguments have the same unit.
    """
    found = dict.fromkeys(PARTS, 0.0)
    for part, took in own:
        found[part] += took
    found["host"] = max(0.0, wall - sum(found.values()))
    total = sum(found.values())
    return {name: took / total for name, took in found.items()}


def measure(core: Core, prompt: int, n: int, timings: Timings) -> Point:
    """Run one group from its prompt on, and abort it when enough steps are measured.

    timings: counts the time in calls that run all layers in C.
    """
    chance = random.Random(prompt * 1000 + n)
    ids = tuple(chance.randrange(1000, core.ready.vocab_size) for _ in range(prompt))
    room = STEPS + PROFILED + 8
    core.add(Add.alike(0, ids, n, 7, room, Sampling(), frozenset()))
    began = time.perf_counter()
    while not core.step().tokens:
        pass
    first = time.perf_counter() - began
    times = [_timed(core) for _ in range(STEPS)]
    Shown.watched = True
    timings.products = timings.attention = timings.rest = 0
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        wall = sum(_timed(core) for _ in range(PROFILED))
    Shown.watched = False
    events, vocab = profile.key_averages(group_by_input_shape=True), core.ready.vocab_size
    own = [(part_of(one.key, one.input_shapes, vocab), one.self_cpu_time_total / 1000) for one in events]
    told = {"products": timings.products, "attention": timings.attention, "other": timings.rest}
    own += [(part, seconds * 1000) for part, seconds in told.items()]
    core.abort(Abort(0, tuple(range(n))))
    step = statistics.median(times)
    return Point(prompt, n, first, step, {name: share * step for name, share in shares(own, wall).items()})


def _timed(core: Core) -> float:
    """Return the milliseconds of one step."""
    began = time.perf_counter()
    core.step()
    return (time.perf_counter() - began) * 1000


def table(head: str, points: Sequence[Point], name: str) -> str:
    """Return a table with a row for each point. name: the field that varies along the curve."""
    columns = ["first token", "a step", "of the first row's", "tokens/s", *PARTS]
    lines = [f"| {head} | {' | '.join(columns)} |", "|" + "---|" * (len(columns) + 1)]
    for point in points:
        parts = " | ".join(f"{point.parts[part]:.1f} ms" for part in PARTS)
        grown = f"{point.step / points[0].step:.2f}x"
        figures = f"{point.first:.2f} s | {point.step:.1f} ms | {grown} | {point.rate:,.0f} | {parts}"
        lines.append(f"| {getattr(point, name):,} | {figures} |")
    return "\n".join(lines) + "\n"


def main(words: Sequence[str]) -> None:
    """Measure the curves, print them and write them."""
    parser = argparse.ArgumentParser(prog="bench.engine.curves", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n", type=numbers, default=WIDTHS, help="choices, by commas")
    parser.add_argument("--prompts", type=numbers, default=LENGTHS, help="lengths in tokens, by commas")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--quantization", choices=("int8",))
    parser.add_argument("--out", help="write bench/results/OUT.json, whatever was left out")
    asked = parser.parse_args(words)
    options: dict[str, Any] = {"dtype": asked.dtype, "device": "cpu", "prefix_cache": False}
    if asked.quantization:
        options["quantization"] = asked.quantization
    config = EngineConfig(str(packed()), **options)
    native = show(config)
    timings = Timings() if native is None else native.timings
    core = Core(config, load_runner(config))
    told = {**conditions(), "dtype": core.ready.dtype, "quantization": asked.quantization, "steps": STEPS}
    told["threads"] = torch.get_num_threads()
    measure(core, min(asked.prompts), min(asked.n), timings)  # warms up

    def point(prompt: int, n: int) -> Point:
        return _say(undisturbed([partial(measure, core, prompt, n, timings)] * TRIES)[0])

    wide = [point(BASE, n) for n in asked.n]
    long = {n: [point(length, n) for length in asked.prompts] for n in FEW}
    tables = [table(f"n, prompt of {BASE} tokens", wide, "n")]
    tables += [table(f"tokens of the prompt, n={n}", points, "prompt") for n, points in long.items()]
    text = taken(told) + "\n".join(tables)
    print(text)
    points = [asdict(point) for point in [*wide, *(point for some in long.values() for point in some)]]
    whole = (tuple(asked.n), tuple(asked.prompts), asked.dtype, asked.quantization) == (WIDTHS, LENGTHS, "auto", None)
    if asked.out or whole:
        write(asked.out or "curves", {"conditions": told, "points": points})
    if whole and not asked.out:
        put("curves", text)


def _say(point: Point) -> Point:
    print(f"{point.prompt} tokens, n={point.n}: {point.step:.1f} ms", file=sys.stderr, flush=True)
    return point


if __name__ == "__main__":
    as_the_engine_runs("bench.engine.curves", sys.argv[1:])
    main(sys.argv[1:])
