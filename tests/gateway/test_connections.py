"""Connections to upstreams are kept and used again."""

from __future__ import annotations

import pytest

from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import Gateway


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_upstream_connections_are_reused(gateway: Gateway, upstream: FakeUpstream, stream: bool, n: int) -> None:
    for _ in range(5):
        assert (await gateway.ask(n=n, stream=stream)).status_code == 200
    assert upstream.connections <= n
    assert await gateway.metric('nproxy_legs_total{outcome="ok",upstream="fake"}') == 5 * n
    assert not any(call.cancelled for call in upstream.calls)
