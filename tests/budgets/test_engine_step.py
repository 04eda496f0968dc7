"""What one decoding step of the engine calls on a CPU: torch operations, and functions in Python.

Numbers that nothing else on the machine changes. Each operation costs a step some microseconds, whatever its size, and
two layers of this model have as many of them as two layers of any. The budgets lie a few percent above what it is; they
are raised and lowered as test_calls.py says.
"""

from __future__ import annotations

import pytest

from engine.core import Core
from tests.budgets.decoding import CHOICES, LAYERS, calls, decoding, operations

OPERATIONS = 372
"""Of torch, views included: 88 a layer, and half of the rest are the random numbers' rounds."""
CALLS = 1560
"""Of Python functions, and of C functions by Python, from `step` to what it tells."""


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
