"""Gateways that lead back to themselves: what goes in circles is found out at once, by its first step."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from nproxy.upstreams.via import Pseudonym
from tests.fakes.upstream import MODEL, FakeUpstream
from tests.gateway.conftest import Gateway, envelope, gateway_for


@asynccontextmanager
async def gateways(*configurations: Callable[..., dict[str, Any]]) -> AsyncIterator[list[Gateway]]:
    """A gateway for each configuration, which is given the addresses of all of them."""
    async with AsyncExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in configurations]
        urls = [f"http://127.0.0.1:{sock.getsockname()[1]}/v1" for sock in sockets]
        yield [
            await stack.enter_async_context(gateway_for(configure(*urls), sock=sock))
            for configure, sock in zip(configurations, sockets, strict=True)
        ]


def upstream(*urls: str, name: str = "loop", **settings: Any) -> dict[str, Any]:
    quiet = {"models": [MODEL], "n": "fanout", "health": {"interval": None}}
    return {"name": name, "replicas": list(urls), **quiet, **settings}


async def refused(gateway: Gateway, *, stream: bool) -> None:
    async with asyncio.timeout(5):
        answer = await gateway.ask(n=4, stream=stream)
    assert answer.status_code == 508 and envelope(answer)["code"] == "loop_detected"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_gateway_that_lists_itself(stream: bool) -> None:
    tight = {"limits": {"inflight_choices": 16, "queue_seconds": 60}, "n_policy": {"max_n": 16}}
    async with gateways(lambda url: {"upstreams": [upstream(url)], **tight}) as (gateway,):
        for _ in range(8):
            await refused(gateway, stream=stream)
            if gateway.app.upstreams.all[0].gate.replicas[0].breaker_state != "closed":
                break
        assert await gateway.metric("nproxy_inflight_choices") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_two_gateways_that_list_each_other(stream: bool) -> None:
    async with gateways(
        lambda _, second: {"upstreams": [upstream(second)]},
        lambda first, _: {"upstreams": [upstream(first)]},
    ) as (gateway, _):
        await refused(gateway, stream=stream)


async def test_what_passes_through_goes_in_no_circle_either() -> None:
    async with gateways(lambda url: {"upstreams": [upstream(url)]}) as (gateway,):
        answer = await gateway.post({"model": MODEL, "input": "hi"}, "/v1/embeddings")
        assert answer.status_code == 508 and envelope(answer)["code"] == "loop_detected"


async def test_another_replica_answers_in_its_place() -> None:
    async with (
        FakeUpstream() as server,
        gateways(lambda url: {"upstreams": [upstream(url, server.url, breaker=None)]}) as (gateway,),
    ):
        assert [(await gateway.ask()).status_code for _ in range(12)] == [200] * 12
        assert gateway.app.upstreams.all[0].gate.replicas[0].begun > 0, "it was tried"


async def test_another_upstream_answers_in_its_place() -> None:
    async with FakeUpstream() as server:
        good = upstream(server.url, name="good")
        async with gateways(lambda url: {"upstreams": [upstream(url, fallback=["good"]), good]}) as (gateway,):
            answer = await gateway.ask(n=2)
            assert answer.status_code == 200 and answer.headers["x-nproxy-upstream"] == "good"


async def test_a_look_at_oneself_shows_that_one_is_down() -> None:
    health = {"interval": 0.05, "down_after": 2}
    async with (
        FakeUpstream() as server,
        gateways(lambda url: {"upstreams": [upstream(url, server.url, health=health)]}) as (gateway,),
    ):
        itself = gateway.app.upstreams.all[0].gate.replicas[0]
        async with asyncio.timeout(20):
            while not itself.health.down:
                await asyncio.sleep(0.02)
        assert [(await gateway.ask()).status_code for _ in range(4)] == [200] * 4 and not itself.begun


@pytest.mark.parametrize("interval", [None, 0.05], ids=["asked", "looked at"])
async def test_whoever_has_only_itself_is_not_ready(interval: float | None) -> None:
    """Its own 508 is no answer, neither where it is asked for one nor where looks have shown it."""
    down = "http://127.0.0.1:9/v1"
    async with gateways(lambda url: {"upstreams": [upstream(url, down, health={"interval": interval})]}) as (gateway,):
        replicas = gateway.app.upstreams.all[0].gate.replicas
        async with asyncio.timeout(20):
            while interval and any(one.health.answered is None for one in replicas):
                await asyncio.sleep(0.02)
            assert (await gateway.client.get("/ready")).status_code == 503


async def test_who_sent_it_on_before_is_kept(upstream: FakeUpstream) -> None:
    """Via grows at its end, one line for each hop, so that other gateways find their loops too."""
    async with gateway_for({"upstreams": [{"name": "u", "replicas": [upstream.url], "n": "fanout"}]}) as gateway:
        own = gateway.app.upstreams.pseudonym.name
        for path, field in (("/v1/chat/completions", "messages"), ("/v1/embeddings", "input")):
            value: Any = [{"role": "user", "content": "hi"}] if field == "messages" else "hi"
            await gateway.post({"model": MODEL, field: value}, path, headers={"via": "1.1 edge, 1.0 nproxy-other"})
            seen = [request for request in upstream.requests if request.path == path][-1]
            assert seen.headers.getall("via") == ["1.1 edge, 1.0 nproxy-other", f"1.1 {own}"]


def test_no_two_gateways_are_called_alike() -> None:
    assert len({Pseudonym().name for _ in range(100)}) == 100
