"""What passes through is sent again only where nothing can have been done with it, and only so often."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tests.fakes.collector import Collector
from tests.fakes.unreachable import says_nothing
from tests.fakes.upstream import FakeUpstream, raw_server
from tests.gateway.conftest import gateway_for

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
ASKED = ({"model": "m"}, "/v1/embeddings")
DOWN = "http://127.0.0.1:9/v1"


def settings(url: str, per_leg: int) -> dict[str, Any]:
    return {"upstreams": [{"name": "u", "replicas": [url], "models": ["m"], "retries": {"per_leg": per_leg}}]}


async def test_kept_connections_that_were_closed_are_forgiven_together() -> None:
    heads, both = 0, asyncio.Event()

    async def serves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heads
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"}")
            heads += 1
            if heads == 2:
                both.set()
            await both.wait()
            writer.write(OK)
            await reader.readuntil(b"}")
            heads += 1

    async with raw_server(serves) as url, gateway_for(settings(url, 0)) as gateway:
        kept = await asyncio.gather(gateway.post(*ASKED), gateway.post(*ASKED))
        assert [answer.status_code for answer in kept] == [200, 200]
        assert (await gateway.post(*ASKED)).status_code == 200, "on a new one"
    assert heads == 4


async def test_of_kept_connections_that_were_closed_one_is_forgiven_and_no_second() -> None:
    """Each of two replicas closes the one on which it has answered before."""
    asked = []

    async def serves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"}")
            writer.write(OK)
            await reader.readuntil(b"}")
            asked.append(writer.get_extra_info("sockname")[1])

    async with raw_server(serves) as one, raw_server(serves) as other:
        config = settings(one, 2)
        config["upstreams"][0]["replicas"].append(other)
        async with gateway_for(config) as gateway:
            kept = await asyncio.gather(gateway.post(*ASKED), gateway.post(*ASKED))
            assert [answer.status_code for answer in kept] == [200, 200]
            assert (await gateway.post(*ASKED)).status_code == 502
    assert len(asked) == len(set(asked)) == 2


async def test_what_a_server_may_have_begun_is_not_sent_again() -> None:
    heads = 0

    async def serves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heads
        await reader.readuntil(b"}")
        heads += 1

    async with raw_server(serves) as url, gateway_for(settings(url, 2)) as gateway:
        assert (await gateway.post(*ASKED)).status_code == 502
    assert heads == 1


async def test_what_is_passed_through_earns_retries_as_all_calls_do(upstream: FakeUpstream) -> None:
    async with gateway_for(settings(upstream.url, 0)) as gateway:
        for _ in range(3):
            assert (await gateway.post(*ASKED)).status_code == 200
        assert sum(gateway.app.upstreams.by_name["u"].budget._calls) == 3


async def test_one_where_no_connection_comes_about_is_left_for_another(upstream: FakeUpstream) -> None:
    with says_nothing() as gone:
        config = settings(gone, 1)
        (first,) = config["upstreams"]
        first |= {"replicas": [gone, upstream.url], "timeouts": {"connect": 0.2}, "health": {"interval": None}}
        async with gateway_for(config) as gateway:
            assert [(await gateway.post(*ASKED)).status_code for _ in range(4)] == [200] * 4


async def test_a_server_that_is_not_there_is_tried_as_often_as_retries_are_left() -> None:
    attempts = []
    for spent in (False, True):
        async with Collector() as collector:
            config = {**settings(DOWN, 2), "telemetry": {"otlp_endpoint": collector.url}}
            async with gateway_for(config) as gateway:
                while spent and gateway.app.upstreams.by_name["u"].budget.take():
                    pass
                answer = await gateway.post(*ASKED)
                assert answer.status_code == 502
                assert "x-should-retry" not in answer.headers, "a client may know better"
        attempts.append(collector.server.attributes["nproxy.attempts"])
    assert attempts == [3, 1]


@pytest.mark.parametrize(("per_leg", "status"), [(1, 200), (0, 502)])
async def test_replicas_that_were_not_tried_yet_cost_no_retry(
    upstream: FakeUpstream, per_leg: int, status: int
) -> None:
    """Where two of three are gone, one retry would end at the second one."""
    config = settings(DOWN, per_leg)
    gone = [{"url": url, "weight": 1000} for url in (DOWN, DOWN.replace(":9", ":11"))]
    config["upstreams"][0] |= {"replicas": [*gone, upstream.url], "health": {"interval": None}}
    async with gateway_for(config) as gateway:
        while gateway.app.upstreams.by_name["u"].budget.take():
            pass
        assert (await gateway.post(*ASKED)).status_code == status


@pytest.mark.parametrize(("most", "count"), [(0, 3), (100, 0)])
async def test_calls_that_the_gateway_could_not_make_are_counted_as_its_own(most: int, count: int) -> None:
    """With no files left for calls: the first attempt and two retries."""
    async with gateway_for(settings(DOWN, 2)) as gateway:
        gateway.app.upstreams._connections._most = most
        assert (await gateway.post(*ASKED)).status_code == 502
        assert await gateway.metric('nproxy_requests_refused_total{reason="calls"}') == count
