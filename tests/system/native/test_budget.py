"""What one decoding step calls on the native road, as tests/budgets has it of torch's."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import FrameType

import pytest

from engine.config import EngineConfig
from engine.core import Core
from engine.messages import Add, Sampling
from engine.native.road import NativeRoad
from engine.runner import Runner
from tests.budgets.test_engine_step import CHOICES, LAYERS, PROMPT, Operations
from tests.fakes.tiny_models import save

OPERATIONS = 196
"""Of torch, views included; most are the draws' and the random numbers'."""
CALLS = 1360
"""Of Python functions, and of C functions by Python, from `step` to what it tells."""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    """Eight choices over one prompt, some tokens behind their fork."""
    folder: Path = tmp_path_factory.mktemp("model")
    save(folder, "llama", head_dim=16, num_hidden_layers=LAYERS, vocab_size=1003, max_position_embeddings=1024)
    config = EngineConfig(str(folder), dtype="float32", num_blocks=200)
    runner = Runner.load(config)
    assert isinstance(runner._road, NativeRoad)
    core = Core(config, runner)
    prompt = tuple(random.Random(5).choices(range(3, 1000), k=PROMPT))
    core.add(Add.alike(1, prompt, CHOICES, 7, 200, Sampling(), frozenset()))
    while len(core.step().tokens) < CHOICES:
        pass
    core.step()  # the last blocks are copied here
    return core


def test_torch_operations_of_a_step(core: Core) -> None:
    with Operations() as operations:
        assert len(core.step().tokens) == CHOICES
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
