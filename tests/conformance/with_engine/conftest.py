"""One engine for all tests of this folder, and a gateway in front of it for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.conformance.with_engine.stage import MODEL, QUEUE, WIDEST, EngineStage
from tests.engine.conftest import engine
from tests.fakes import tiny_chat
from tests.gateway.conftest import Gateway, gateway_for
from tests.real.processes import Server

CONTEXT = 16_384  # some answers here end when nobody reads them any more, and not before


@pytest.fixture(scope="session")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`python -m engine` with the tiny model, which writes calls and reasoning as Qwen3 does."""
    folder = tmp_path_factory.mktemp("tiny")
    options = ("--served-model-name", MODEL, "--max-sequences", str(WIDEST), "--max-queue", str(QUEUE))
    with engine(tiny_chat.save(folder / "model", CONTEXT), *options, log=folder / "engine.log") as running:
        yield running


@pytest.fixture
async def stage(tiny_engine: Server) -> AsyncIterator[EngineStage]:
    """A client, a gateway, and the engine."""
    async with AsyncExitStack() as stack:

        async def begin(config: dict[str, Any]) -> Gateway:
            return await stack.enter_async_context(gateway_for(config))

        yield EngineStage(tiny_engine, begin)
