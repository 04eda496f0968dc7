"""What one decoding step of the engine calls on a CPU: torch operations, and functions in Python.

Numbers that nothing else on the machine changes. Each operation costs a step some microseconds, whatever its size, and
two layers of this model have as many of them as two layers of any. The budgets lie a few percent above what it is; they
are raised and lowered as test_calls.py says.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from engine.config import EngineConfig
from engine.core import Core
from engine.messages import Add, Sampling
from engine.runner import Runner
from tests.fakes.tiny_models import save

CHOICES = 8
PROMPT = 509
LAYERS = 2

OPERATIONS = 372
"""Of torch, views included: 88 a layer, and half of the rest are the random numbers' rounds."""
CALLS = 1560
"""Of Python functions, and of C functions by Python, from `step` to what it tells."""


class Operations(TorchDispatchMode):
    """Counts torch operations, views included, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    """Eight choices over one prompt, some tokens behind their fork."""
    folder: Path = tmp_path_factory.mktemp("model")
    save(folder, "llama", num_hidden_layers=LAYERS, vocab_size=1003, max_position_embeddings=1024)
    config = EngineConfig(str(folder), dtype="float32", num_blocks=200)
    core = Core(config, Runner.load(config))
    prompt = tuple(random.Random(5).choices(range(3, 1000), k=PROMPT))
    core.add(Add.alike(1, prompt, CHOICES, 7, 200, Sampling(), frozenset()))
    while len(core.step().tokens) < CHOICES:
        pass
    core.step()  # the last blocks are copied here
    return core


def test_torch_operations_of_a_step(core: Core) -> None:
    with Operations() as operations:
        assert len(core.step().tokens) == CHOICES
    assert sum("flash" in name for name in operations.names) == LAYERS, "the shared prompt is read in place, once"
    assert len(operations.names) <= OPERATIONS, f"{len(operations.names)}: {sorted(operations.names)}"


def test_python_calls_of_a_step(core: Core) -> None:
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        step = core.step()
    finally:
        sys.setprofile(None)
    assert len(step.tokens) == CHOICES
    assert calls <= CALLS, f"{calls} calls for {CHOICES} rows and {LAYERS} layers"
