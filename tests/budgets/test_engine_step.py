"""What one decoding step of the engine calls on a CPU: torch operations and Python functions.

These numbers do not depend on anything else that runs on the machine. Each operation costs some microseconds per step,
whatever its size, and two layers of this model have as many operations as two layers of any other. The budgets are a
few percent above the current numbers; they are raised and lowered as test_calls.py says.
"""

from __future__ import annotations

import pytest

from engine.core import Core
from tests.budgets.decoding import CHOICES, LAYERS, calls, decoding, operations

OPERATIONS = 372
"""Torch operations, including views: 88 per layer; half of the others are the rounds of the random number generator."""
CALLS = 1560
"""Calls of Python functions, and of C functions by Python, from `step` until it returns its result."""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    return decoding(tmp_path_factory.mktemp("model"))[1]


def test_torch_operations_of_a_step(core: Core) -> None:
    names = operations(core)
    assert sum("flash" in name for name in names) == LAYERS, "the shared prompt is read in place, once"
    assert len(names) <= OPERATIONS, f"{len(names)}: {names}"


def test_python_calls_of_a_step(core: Core) -> None:
    count = calls(core)
    assert count <= CALLS, f"{count} calls for {CHOICES} rows and {LAYERS} layers"
