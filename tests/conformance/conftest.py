"""The `scene` fixture of this suite. Settings and the strict reader are in modules beside this one."""

from __future__ import annotations

import pytest

from tests.conformance.scene import Scene
from tests.conformance.settings import Setting
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import Start, gateway, pytest_asyncio_loop_factories, start, upstream

__all__ = ["gateway", "pytest_asyncio_loop_factories", "start", "upstream"]


@pytest.fixture
def scene(setting: Setting, upstream: FakeUpstream, start: Start) -> Scene:
    """A client, a gateway and a scripted upstream, in the test's setting."""
    return Scene(setting, upstream, start)
