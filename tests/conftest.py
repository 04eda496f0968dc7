"""Settings and fixtures for all tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from engine.gc_freeze import gc_frozen
from nproxy import models
from tests.order import longest_first
from tests.witness import witness

# Read when torch is first imported. Its threads then sleep while they wait, since several torch processes run at once.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Read when Triton is first imported, which torch and transformers may do before any kernel of ours. Kernels then run
# under Triton's interpreter, in fp32 and fp16 (its bf16 is wrong). Tests that need the compiler use a process without
# the variable.
os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples in every run, however slow the machine is: a failure is the code's fault, and can be repeated.
settings.register_profile("fixed", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fixed")


_handle = logging.Logger.handle


def _heard_and_handled(logger: logging.Logger, record: logging.LogRecord) -> None:
    witness.heard(record)
    _handle(logger, record)


logging.Logger.handle = _heard_and_handled  # type: ignore[assignment, method-assign]  # handlers come and go, this stays


@pytest.fixture
def unwatched_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the witness, who reads every line, out of what is counted."""
    monkeypatch.setattr(logging.Logger, "handle", _handle)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from what is imported and collected: nearly all of it stays to the end.

    The rest, some hundred thousand small objects, is not looked for: a second for each of the processes.
    """
    with gc_frozen(collect=False):
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the test files that take long first."""
    items[:] = longest_first(items)


@pytest.fixture(autouse=True)
def no_secret_is_told() -> Iterator[None]:
    """Fail if a test has logged or shown secrets, prompts or answers; see tests/witness.py."""
    witness.listen()
    yield
    assert witness.told() == []


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The real default model's .gguf file. It is downloaded on first use, and then kept in the user's cache.

    A test that uses it carries the mark `model`.
    """
    return models.fetch(models.DEFAULT)
