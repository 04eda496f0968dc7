"""The engine as a process of its own, with the real default model, started once for all tests that send requests."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch

from bench.gpu.interpreted import exact_products, known_types
from tests.ports import free_port
from tests.real.processes import Server, server

MODEL = "smollm2"


@pytest.fixture(scope="session", autouse=True)
def _bits_can_be_compared() -> None:
    """Make products exact, so that bits can be compared under Triton's interpreter on every processor; and hurry it."""
    exact_products()
    known_types()


@pytest.fixture(scope="module", autouse=True)
def _threads_as_before() -> Iterator[None]:
    """Restore torch's thread count, which loading a model sets for the whole process, after each module."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@contextmanager
def engine(model: Path, *options: str, log: Path) -> Iterator[Server]:
    """Run `python -m engine` with the model on a free port, in fp32; begins when the model is loaded."""
    port = free_port()
    argv = [sys.executable, "-m", "engine", str(model), "--port", str(port), "--served-model-name", MODEL]
    argv += ["--dtype", "float32", *options]
    # With two threads, a step waits at every product for a core that another process may hold; with one it never does.
    with server(argv, port=port, log=log, ready="/health", env={"OMP_NUM_THREADS": "1"}, seconds=110.0) as running:
        yield running


@pytest.fixture(scope="session")
def engine_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the output of the started processes."""
    return tmp_path_factory.mktemp("engine-logs")


@pytest.fixture(scope="session")
def engine_server(default_model: Path, engine_logs: Path) -> Iterator[Server]:
    """The engine that most tests share. It runs at most 48 sequences at once, so that wider requests can be refused."""
    with engine(default_model, "--max-sequences", "48", log=engine_logs / "engine.log") as running:
        yield running


@pytest.fixture
async def client(engine_server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the shared engine."""
    async with httpx.AsyncClient(base_url=engine_server.url, timeout=60.0, trust_env=False) as opened:
        yield opened
