"""Check the engine as it is served: loaded from a folder by its own loader, and watched while it answers.

The checks are those that only a GPU can show: no step waits for the device while it is submitted, nothing is compiled
and no allocation is retried while serving, and recorded steps give the same bits as launched ones in deterministic
mode.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from bench.gpu.random_models import twin
from bench.gpu.run import Run
from bench.gpu.serving import Answers, Served, Watched, prompt, request
from bench.gpu.table import Result
from engine.batch import Batch
from engine.config import EngineConfig
from engine.core import Pending
from engine.device.runner import DeviceRunner
from engine.loading import load_runner
from engine.messages import Add, Sampling

_WAITS, _COMPILED = "steps that wait for the device", "kernels compiled while serving"
_RETRIES, _BITS = "searches for memory while serving", "deterministic, recorded and launched: differing tokens"
_KINDS = (
    Sampling(),
    Sampling(temperature=0.0),
    Sampling(top_k=40, top_p=0.9, min_p=0.01),
    Sampling(logit_bias=((3, 2.0),), presence_penalty=0.5, repetition_penalty=1.1),
    Sampling(allowed_tokens=tuple(range(40))),
)


def check(run: Run) -> None:
    """Run all checks, on the small model."""
    run.attempt([_WAITS, _COMPILED, _RETRIES, _BITS], partial(_check, run))


@dataclass(slots=True)
class _Strict(Watched):
    """A runner that counts the steps in which torch would wait for the device while they are submitted."""

    waited: int = 0
    first: str = ""

    def submit(self, batch: Batch) -> Pending:
        if self.ready.device != "cuda":
            return self.inner.submit(batch)
        torch.cuda.set_sync_debug_mode("error")
        try:
            return self.inner.submit(batch)
        except RuntimeError as error:
            self.waited, self.first = self.waited + 1, self.first or str(error)
            raise
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _check(run: Run) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder:
        twin(run.plan.small, torch.float32 if run.clock.dry else run.clock.dtype, run.clock.device).save_pretrained(
            folder
        )
        compiled: list[str] = []
        served = _served(run, Path(folder))
        strict = _Strict(served.runner)
        retries = _retries()
        triton.knobs.runtime.jit_cache_hook = partial(_note, compiled)
        try:
            Served(served.config, strict, run.clock).answer(_requests(run))
        finally:
            triton.knobs.runtime.jit_cache_hook = None
            yield Result(_WAITS, strict.waited, strict.first[:120], goal=0)
        yield Result(_COMPILED, len(compiled), ", ".join(sorted(set(compiled)))[:120], goal=0)
        taken = _retries()
        note = f"{taken['num_device_alloc'] - retries['num_device_alloc']} times memory was asked of the device"
        yield Result(_RETRIES, taken["num_alloc_retries"] - retries["num_alloc_retries"], note, goal=0)
        del served, strict
        answers = [_told(run, Path(folder), recorded) for recorded in (True, False)]
        differing = sum([answers[0].tokens[key] != tokens for key, tokens in answers[1].tokens.items()])
        differing += sum([answers[0].logprobs[key] != told for key, told in answers[1].logprobs.items()])
        yield Result(_BITS, differing, f"of {len(answers[1].tokens)} choices", goal=0)


def _served(run: Run, folder: Path, **settings: Any) -> Served:
    """Load a folder and make a runner as the engine does; in a dry run, with small settings."""
    if run.clock.dry:
        settings |= {"device": "cpu", "kernels": "triton", "dtype": "float32"}
        settings |= {"num_blocks": 64, "max_sequences": 8, "max_batch_tokens": 8 + 2 * run.plan.block}
    config = EngineConfig(str(folder), block_size=run.plan.block, **settings)
    runner = load_runner(config)
    assert isinstance(runner, DeviceRunner)
    return Served(config, runner, run.clock)


def _requests(run: Run) -> list[Add]:
    """Return concurrent requests of every kind and length: chunks beside rows, forks, all kinds of sampling."""
    shape = run.plan.small
    if run.clock.dry:
        return [request(prompt(shape, 5, 1), 2, 2, logprobs=1)]
    sizes = ((131, 4), (1021, 7), (17, 1), (509, 33), (5000, 2), (1, 3), (8191, 16))
    return [
        Add.alike(group, prompt(shape, length, group), n, group, 40, _KINDS[group % len(_KINDS)], frozenset())
        for group, (length, n) in enumerate(sizes)
    ]


def _told(run: Run, folder: Path, recorded: bool) -> Answers:
    served = _served(run, folder, deterministic=True, cuda_graphs=recorded, kv_fraction=0.2)
    shape = run.plan.small
    length, n, new = (5, 2, 2) if run.clock.dry else (1021, 16, 40)
    return served.answer([request(prompt(shape, length, 7), n, new, logprobs=2)])


def _note(compiled: list[str], **told: Any) -> bool:
    compiled.append(str(told.get("repr") or told.get("key"))[:60])
    return False


def _retries() -> Mapping[str, int]:
    """Return torch's counts of allocation retries and of allocations from the device."""
    stats = torch.cuda.memory_stats() if torch.cuda.is_available() else {}
    return {name: stats.get(name, 0) for name in ("num_alloc_retries", "num_device_alloc")}
