"""The two roads through the product, each a real process over the real default model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.processes import Server, nproxy

MODEL = "smollm2-135m-instruct"
"""The id under which the built-in engine serves the default model."""


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what the started processes print."""
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def engine_road(default_model: Path, logs: Path) -> Iterator[Server]:
    """`nproxy serve` alone: the built-in engine with the default model, in fp32.

    In fp32 a choice does not depend on what else the batch holds, so that answers can be compared word by word.
    """
    with nproxy("--dtype", "float32", log=logs / "engine-road.log", seconds=100.0) as running:
        yield running


@pytest.fixture(scope="session")
def fanout_road(engine_road: Server, logs: Path) -> Iterator[Server]:
    """`nproxy serve --upstream URL --n fanout`, in front of the engine road: every choice a call of its own."""
    with nproxy("--upstream", engine_road.v1, "--n", "fanout", log=logs / "fanout-road.log") as running:
        yield running


@pytest.fixture(params=["engine", "fanout"])
def road(request: pytest.FixtureRequest) -> Server:
    """Both roads, one after the other."""
    running: Server = request.getfixturevalue(f"{request.param}_road")
    return running
