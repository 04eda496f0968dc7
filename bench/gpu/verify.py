"""Check on a machine with a GPU that all kernels are right, and measure everything against its goals, in one command.

    python bench/gpu/verify.py [--only kernels,1,4,9] [--budget 450] [--out FOLDER] [--dry]

Needs torch, Triton, transformers and NumPy. It needs no network and no model files: models of real shapes get random
weights. First every kernel is checked in bfloat16 against float64, and the engine against transformers in float32; then
the measures are taken. Each part runs in a process of its own with a share of the budget (seconds). A part that fails,
hangs or breaks the device is reported in the table, and the other parts go on. Most checks run concurrently; the
measures run one after the other.

Progress goes to standard error. At the end, one table goes to standard output: measured, predicted (bench/roofline.py,
from the bandwidth and the product rate measured in this run), goal. All figures and their parts are written as JSON to
--out, by default $OUT, and to bench/results/gpu/. --dry runs the same code on a CPU in one process, with tiny shapes
under Triton's interpreter and clocks that do not measure time: only the figures are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from bench import roofline  # noqa: E402 - the repository is not installed when this runs from a checkout
from bench.gpu.cases import BY_KEY, DRY, FULL  # noqa: E402
from bench.gpu.table import Result, met, render, report  # noqa: E402

if TYPE_CHECKING:
    from bench.gpu.run import Run

RESULTS = ROOT / "bench" / "results" / "gpu"
_MODULE = "bench.gpu.verify"


@dataclass(frozen=True, slots=True)
class Part:
    """What runs in one process.

    words: the words of --only that select it. seconds: its time limit. beside: whether it runs concurrently with
    others. dry: whether a dry run includes it; with tiny shapes some parts are the same.
    """

    name: str
    words: frozenset[str]
    seconds: float
    beside: bool = False
    dry: bool = True


PARTS = (
    Part("attention64", frozenset({"kernels"}), 130, beside=True),
    Part("attention128", frozenset({"kernels"}), 130, beside=True, dry=False),
    Part("prefill64", frozenset({"kernels"}), 130, beside=True),
    Part("prefill128", frozenset({"kernels"}), 130, beside=True, dry=False),
    Part("small", frozenset({"kernels"}), 130, beside=True),
    Part("engine", frozenset({"kernels"}), 130, beside=True),
    Part("served", frozenset({"kernels"}), 130),
    Part("hardware", frozenset({"hw"}), 30),
    Part("layer", frozenset("12345"), 90),
    Part("step", frozenset("6"), 80),
    Part("requests", frozenset({"7", "8", "10"}), 90),
    Part("deterministic", frozenset({"11"}), 90),
    Part("peers", frozenset("9"), 90),  # the last, because it uses all the time that is left
)
WORDS = frozenset().union(*[part.words for part in PARTS])


def carry_out(part: str, words: frozenset[str], run: Run) -> None:
    """Run a part in this process."""
    from bench.gpu import attention, check_attention, check_engine, check_kernels, check_served, clocks, engine_measures

    def small(run: Run) -> None:
        check_kernels.small(run)
        check_kernels.sampler(run)

    parts: dict[str, Callable[[Run], None]] = {
        "attention64": lambda run: check_attention.decode(run, 64),
        "attention128": lambda run: check_attention.decode(run, 128),
        "prefill64": lambda run: check_attention.prefill(run, 64),
        "prefill128": lambda run: check_attention.prefill(run, 128),
        "small": small,
        "engine": check_engine.check,
        "served": check_served.check,
        "hardware": lambda run: run.attempt(["hw.copy", "hw.matmul"], lambda: clocks.ceilings(run.clock)),
        "layer": lambda run: attention.measure(run, words),
        "step": engine_measures.step,
        "requests": lambda run: engine_measures.requests(run, words),
        "peers": engine_measures.against_transformers,
        "deterministic": engine_measures.deterministic,
    }
    parts[part](run)


class Record:
    """The results so far, from any thread; the table and the files can be made from them at any time."""

    def __init__(self, out: Path, budget: float, *, dry: bool) -> None:
        self.results: list[Result] = []
        self._lock = threading.Lock()
        self._out = out
        self._dry = dry
        self._began = time.monotonic()
        self.ends = self._began + budget

    def add(self, result: Result) -> None:
        """Add one result."""
        with self._lock:
            self.results.append(result)

    def write(self) -> None:
        """Write the files, with the results so far."""
        results, predicted = self._so_far()
        conditions = _conditions() | {"dry": self._dry, "seconds": round(time.monotonic() - self._began)}
        told = json.dumps(report(results, predicted, conditions), indent=1) + "\n"
        for folder in dict.fromkeys([self._out] if self._dry else [self._out, RESULTS]):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ("dry.json" if self._dry else "verify.json")).write_text(told)

    def finish(self) -> bool:
        """Write the files and print the table; return whether every check passed and every measure has a value."""
        self.write()
        results, predicted = self._so_far()
        print(render(results, {} if self._dry else predicted, judged=not self._dry), flush=True)
        return all(result.value is not None if result.key in BY_KEY else met(result) for result in results)

    def _so_far(self) -> tuple[list[Result], dict[str, float]]:
        """Return the results, and what is predicted from this run's bandwidth and product rate."""
        with self._lock:
            results = list(self.results)
        rates = {result.key: result.value for result in results if result.value}
        machine = roofline.Machine(
            bandwidth=rates.get("hw.copy", roofline.H200.bandwidth / 1e12) * 1e12,
            matmul=rates.get("hw.matmul", roofline.H200.matmul / 1e12) * 1e12,
        )
        return results, roofline.predict(roofline.H200 if self._dry else machine)


def _conditions() -> dict[str, Any]:
    told: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("torch", "triton", "transformers", "numpy"):
        try:
            told[name] = version(name)
        except PackageNotFoundError:
            told[name] = None
    return told


def _child(options: argparse.Namespace, part: Part, record: Record) -> None:
    """Run a part in a process of its own; record its results as they arrive, and its exit status if it fails."""
    left = record.ends - time.monotonic()
    seconds = min(part.seconds, left)
    argv = [sys.executable, "-m", _MODULE, "--part", part.name, "--only", options.only, "--budget", f"{seconds:.0f}"]
    argv += ["--dry"] * options.dry
    if seconds < 5:
        record.add(Result(f"part {part.name}", None, "no time was left for it"))
        return
    _say(f"{part.name}: at most {seconds:.0f} s")
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        # A part checks its time limit between cases; one that hangs in a case is killed.
        overdue = threading.Timer(seconds + 15, child.kill)
        overdue.start()
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("{"):
                record.add(Result.parse(line))
        status = child.wait()
        overdue.cancel()
    if status:
        record.add(Result(f"part {part.name}", None, f"the process ended with {status}"))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _run(part: Part, words: frozenset[str], emit: Callable[[Result], None], ends: float, *, dry: bool) -> None:
    """Set up what a part works with, and run it."""
    from bench.gpu.clocks import CudaClock, DryClock
    from bench.gpu.run import Run

    if not dry:
        Run.prepare()
    clock = DryClock() if dry else CudaClock()
    carry_out(part.name, words, Run(clock, DRY if dry else FULL, ends, emit))


def _all(options: argparse.Namespace, parts: Sequence[Part], record: Record) -> None:
    beside = [part for part in parts if part.beside]
    threads = [threading.Thread(target=_child, args=(options, part, record)) for part in beside]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record.write()
    for part in parts:
        if not part.beside:
            _child(options, part, record)
            record.write()


def _cuda() -> str | None:
    """Return why there is no GPU to run on; None if there is one."""
    import torch

    if not torch.cuda.is_available():
        return "there is no CUDA device here; --dry runs everything but the figures on a CPU"
    _say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    return None


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(sorted(WORDS)), help="parts, by commas: kernels, hw, 1 .. 11")
    parser.add_argument("--budget", type=float, default=450, help="seconds that all of it may take")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or RESULTS), help="folder of the JSON")
    parser.add_argument("--dry", action="store_true", help="tiny shapes on a CPU, no figures")
    parser.add_argument("--part", choices=[part.name for part in PARTS], help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if unknown := set(options.only.split(",")) - WORDS:
        parser.error(f"there is no part {sorted(unknown)[0]!r}; there are {', '.join(sorted(WORDS))}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for; return 0 if every check passed and every measure has a value, whatever the value."""
    options = _parse(argv)
    words = frozenset(options.only.split(","))
    if options.dry:
        os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported
        from bench.gpu.interpreted import exact_products, known_types

        exact_products()
        known_types()
    if options.part:
        chosen = next(part for part in PARTS if part.name == options.part)
        ends = time.monotonic() + options.budget
        _run(chosen, words, lambda result: print(result.line(), flush=True), ends, dry=options.dry)
        return 0
    if not options.dry and (why := _cuda()):
        _say(why)
        return 2
    record = Record(options.out, options.budget, dry=options.dry)
    parts = [part for part in PARTS if part.words & words]
    if options.dry:
        for part in parts:
            if part.dry:
                _run(part, words, record.add, record.ends, dry=True)
    else:
        _all(options, parts, record)
    return 0 if record.finish() else 1


if __name__ == "__main__":
    sys.exit(main())
