"""Where a decode step's time goes on a GPU: by kernel, and on the host.

    python bench/gpu/step_profile.py [--out FILE] [--dry]

For each case, a table: microseconds of a step by kernel (torch's profiler), and what the host did in that time:
submitting steps, waiting for the device, everything else. Host times come from a run without the profiler. Kernel times
are the difference between a long answer and a short one, so that the prompt's are not among them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    if "--dry" in sys.argv:
        os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are imported
        from bench.gpu.interpreted import known_types

        known_types()

from torch.profiler import ProfilerActivity, profile

from bench.gpu.cases import DRY, FULL, ModelShape
from bench.gpu.clocks import CudaClock, DryClock
from bench.gpu.run import Run
from bench.gpu.serving import Model, Served, Watched, prompt, request
from bench.gpu.table import columns
from engine.batch import Batch, StepOutput
from engine.core import Pending
from engine.messages import Add

_STEPS = 64
_KERNELS = 16  # lines of a table; the rest is one more


@dataclass(slots=True)
class _Waited:
    """A step in flight that notes how long its result was waited for."""

    inner: Pending
    seconds: list[float]

    def result(self) -> StepOutput:
        began = time.perf_counter()
        try:
            return self.inner.result()
        finally:
            self.seconds.append(time.perf_counter() - began)


@dataclass(slots=True)
class _Timed(Watched):
    """A runner that notes how long the host took to submit each step, and to wait for it."""

    submits: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def submit(self, batch: Batch) -> Pending:
        began = time.perf_counter()
        pending = self.inner.submit(batch)
        self.submits.append(time.perf_counter() - began)
        return _Waited(pending, self.waits)


@dataclass(frozen=True, slots=True)
class Profile:
    """Microseconds of a middle step: its wall time, the host's parts of it, the device's time by kernel."""

    case: str
    wall: float
    submit: float
    wait: float
    kernels: dict[str, float]
    launches: dict[str, float]
    """Launches per step, by kernel."""

    def table(self) -> str:
        """Return the profile as text."""
        device = sum(self.kernels.values())
        rest = self.wall - self.submit - self.wait
        head = (
            f"{self.case}: {self.wall:.0f} us a step; the device computes for {device:.0f}; the host submits for"
            f" {self.submit:.0f}, waits for {self.wait:.0f}, does something else for {rest:.0f}"
        )
        first = sorted(self.kernels, key=lambda name: -self.kernels[name])
        rows = [(f"  {self.kernels[name]:.1f}", f"{self.launches[name]:.0f} x", name[:90]) for name in first[:_KERNELS]]
        if others := first[_KERNELS:]:
            sums = sum([self.kernels[name] for name in others]), sum([self.launches[name] for name in others])
            rows.append((f"  {sums[0]:.1f}", f"{sums[1]:.0f} x", f"{len(others)} others"))
        return f"{head}\n{columns(rows)}" if rows else head


def profiles(run: Run) -> Iterator[Profile]:
    """Profile one request's steps for each model and number of choices."""
    lengths = run.plan.lengths
    for shape, widths in (
        (run.plan.small, (1, lengths.narrow, lengths.wide, lengths.widest)),
        (run.plan.large, (1, lengths.wide)),
    ):
        model = Model.of(run, shape)
        room = lengths.short + max(widths) * (_STEPS + 3 * run.plan.block)
        served = model.runner(run, room)
        for n in widths[: 1 if run.clock.dry else None]:
            yield _profile(run, served, shape, n)
        del served, model


def _profile(run: Run, served: Served, shape: ModelShape, n: int) -> Profile:
    timed = _Timed(served.runner)
    watched = Served(served.config, timed, run.clock)
    tokens, short = prompt(shape, run.plan.lengths.short, n), 2
    steps = 2 if run.clock.dry else _STEPS
    long = [request(tokens, n, short + steps)]
    watched.answer(long)
    timed.submits.clear()
    timed.waits.clear()
    plain = watched.answer(long)
    submit, wait = (statistics.median(taken[-steps:]) for taken in (timed.submits, timed.waits))
    micros, launches = _kernels(run, watched, long)
    without = _kernels(run, watched, [request(tokens, n, short)])
    micros.subtract(without[0])
    launches.subtract(without[1])
    return Profile(
        f"{shape.name}, n={n}",
        statistics.median(plain.steps) * 1e6,
        submit * 1e6,
        wait * 1e6,
        {name: taken / steps for name, taken in micros.items()},
        {name: launches[name] / steps for name in micros},
    )


def _kernels(run: Run, served: Served, adds: list[Add]) -> tuple[Counter[str], Counter[str]]:
    """Return the microseconds and the launches of each kernel while requests are answered."""
    activity = ProfilerActivity.CPU if run.clock.dry else ProfilerActivity.CUDA
    with profile(activities=[activity], acc_events=True) as watching:
        served.answer(adds)
    micros, launches = Counter[str](), Counter[str]()
    for event in watching.key_averages():
        if event.self_device_time_total:
            micros[event.key] += event.self_device_time_total
            launches[event.key] += event.count
    return micros, launches


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="a file for the figures, JSON")
    parser.add_argument("--dry", action="store_true", help="tiny shapes on a CPU, no figures")
    options = parser.parse_args()
    Run.prepare()
    clock = DryClock() if options.dry else CudaClock()
    run = Run(clock, DRY if options.dry else FULL, time.monotonic() + 600, lambda result: None)
    told: list[dict[str, Any]] = []
    for one in profiles(run):
        print(one.table() + "\n", flush=True)
        told.append(asdict(one))
        if options.out:
            options.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
