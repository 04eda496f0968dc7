"""A decoding step of the engine's core, and what it calls: torch operations and Python functions."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from engine.config import EngineConfig
from engine.core import Core
from engine.cpu_runner import CpuRunner
from engine.messages import Add, Sampling
from tests.fakes.tiny_models import save

CHOICES = 8
PROMPT = 509
LAYERS = 2


def decoding(folder: Path, **sizes: Any) -> tuple[CpuRunner, Core]:
    """A core that decodes eight choices of one prompt, some tokens after their fork. sizes: of the model."""
    save(folder, "llama", num_hidden_layers=LAYERS, vocab_size=1003, max_position_embeddings=1024, **sizes)
    config = EngineConfig(str(folder), dtype="float32", num_blocks=200)
    runner = CpuRunner.load(config)
    core = Core(config, runner)
    prompt = tuple(random.Random(5).choices(range(3, 1000), k=PROMPT))
    core.add(Add.alike(1, prompt, CHOICES, 7, 200, Sampling(), frozenset()))
    while len(core.step().tokens) < CHOICES:
        pass
    core.step()  # the last blocks are copied in this step
    return runner, core


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own, without annotations
    """Notes the names of torch operations, including views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def operations(core: Core) -> list[str]:
    """The names of the torch operations in the next step, including views."""
    with _Operations() as seen:
        assert len(core.step().tokens) == CHOICES
    return sorted(seen.names)


def calls(core: Core) -> int:
    """Number of calls of Python functions, and of C functions by Python, in the next step."""
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        step = core.step()
    finally:
        sys.setprofile(None)
    assert len(step.tokens) == CHOICES
    return count
