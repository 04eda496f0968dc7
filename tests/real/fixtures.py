"""The two setups of the product that tests run, each a real process with the real default model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.processes import Server, nproxy

MODEL = "smollm2-135m-instruct"
"""The id under which the built-in engine serves the default model."""


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the output of started processes."""
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def engine_road(default_model: Path, logs: Path) -> Iterator[Server]:
    """`nproxy serve` alone: the built-in engine with the default model, in fp32.

    In fp32 a choice does not depend on what else is in the batch, so answers can be compared word by word.
    """
    with nproxy("--dtype", "float32", log=logs / "engine-road.log", seconds=100.0) as running:
        yield running


@pytest.fixture(scope="session")
def fanout_road(engine_road: Server, logs: Path) -> Iterator[Server]:
    """`nproxy serve --upstream URL --n fanout` in front of `engine_road`: each choice is a call of its own."""
    with nproxy("--upstream", engine_road.v1, "--n", "fanout", log=logs / "fanout-road.log") as running:
        yield running


@pytest.fixture(params=["engine", "fanout"])
def road(request: pytest.FixtureRequest) -> Server:
    """Runs a test with `engine_road`, then with `fanout_road`."""
    running: Server = request.getfixturevalue(f"{request.param}_road")
    return running
