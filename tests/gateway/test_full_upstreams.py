"""An upstream that is full: which refusals are taken for that."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.upstream import Behaviour, FakeUpstream
from tests.gateway.conftest import Start
from tests.waiting import until


@pytest.mark.parametrize(("wait", "crowded"), [({}, 0), ({"retry-after": "0.2"}, 1)])
async def test_a_503_that_names_a_time_is_about_room(
    upstream: FakeUpstream, start: Start, wait: dict[str, str], crowded: int
) -> None:
    """A lone one without may be any fault, and is tried again as such."""
    gateway = await start()
    upstream.script(Behaviour(pause=0.2), Behaviour(status=503, headers=wait))
    first = asyncio.create_task(gateway.ask())
    await until(lambda: len(upstream.calls) == 1)
    assert (await gateway.ask()).status_code == 200 and (await first).status_code == 200
    assert await gateway.metric('nproxy_anomalies_total{kind="crowded",upstream="fake"}') == crowded
