"""The client that is tested, in both of its forms."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.gateway.admission.scene import Begin, Scene


@pytest.fixture(params=["beside it", "over a wire"])
async def begin(request: pytest.FixtureRequest) -> AsyncIterator[Begin]:
    """Make a client: keywords are `limits`. In the end nothing may be taken."""
    scenes: list[Scene] = []

    def make(max_inflight: int = 1024, **limits: Any) -> Scene:
        scenes.append(Scene(request.param == "over a wire", limits, max_inflight))
        return scenes[-1]

    yield make
    for scene in scenes:
        await scene.settled()
        assert (scene.client.taken, scene.client.waiting) == (0, 0)
        assert (scene.server.ledger.taken, scene.server.ledger.waiting) == (0, 0)
        scene.client.close()
