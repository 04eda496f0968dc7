"""nproxy with other projects' programs, which `make test-system` installs first, beside nproxy's environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.fixtures import engine_road, fanout_road, logs, road
from tests.real.processes import Server
from tests.system.browser import chromium
from tests.system.transformers_serve import hf_folder, transformers_serve

__all__ = ["engine_road", "fanout_road", "logs", "road"]


@pytest.fixture(scope="session")
def smollm2_folder(default_model: Path) -> Path:
    """The default model as a Hugging Face folder."""
    return hf_folder(default_model)


@pytest.fixture(scope="session")
def transformers_server(smollm2_folder: Path, logs: Path) -> Iterator[Server]:
    """`transformers serve` with the default model."""
    with transformers_serve(smollm2_folder, log=logs / "transformers-serve.log") as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, for the tests of one file."""
    with chromium() as running:
        yield running
