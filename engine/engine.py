"""The engine as a library: add, abort, step. Synchronous; the core process and the tests call it alike."""

from __future__ import annotations

from typing import Protocol

from engine.batch import Batch, StepOutput
from engine.messages import Ready


class Runner(Protocol):
    """What runs a step: a loaded model with its KV cache, or a test's deterministic stand-in."""

    @property
    def ready(self) -> Ready:
        """What was loaded, and how large the pool is: fixed from loading on."""
        ...

    def run(self, batch: Batch) -> StepOutput:
        """Carry out copies, then chunks, then rows; return every drawn token in the order of StepOutput."""
        ...
