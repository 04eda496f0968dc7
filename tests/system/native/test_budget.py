"""What one decode step calls on the native backend, as tests/budgets checks it for torch's backend."""

from __future__ import annotations

import pytest

from engine.core import Core
from engine.native.backend import NativeBackend
from tests.budgets.decoding import CHOICES, LAYERS, calls, decoding, operations

OPERATIONS = 47
"""Operations of torch, views included."""
CALLS = 1150
"""Calls of Python functions, and of C functions by Python, from `step` to its result."""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    runner, core = decoding(tmp_path_factory.mktemp("model"), head_dim=16, hidden_size=96)
    assert isinstance(runner._backend, NativeBackend)
    return core


def test_torch_operations_of_a_step(core: Core) -> None:
    names = operations(core)
    assert len(names) <= OPERATIONS, f"{len(names)}: {names}"


def test_python_calls_of_a_step(core: Core) -> None:
    count = calls(core)
    assert count <= CALLS, f"{count} calls for {CHOICES} rows and {LAYERS} layers"
