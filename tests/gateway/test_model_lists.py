"""A server that hangs keeps no request waiting that it cannot answer, and a model that was just loaded is found."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from nproxy.config import Config
from nproxy.upstreams import models
from nproxy.upstreams.models import WAIT_SECONDS
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import Gateway, gateway_for


@pytest.fixture
async def one() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream(models=["a"]) as server:
        yield server


@pytest.fixture
async def other() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream(models=["b"]) as server:
        yield server


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every list is old."""
    monkeypatch.setattr(models, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(models, "RECENT_SECONDS", 0.0)


def settings(**upstreams: FakeUpstream) -> dict[str, Any]:
    return {"upstreams": [{"name": name, "replicas": [server.url]} for name, server in upstreams.items()]}


@asynccontextmanager
async def knowing(one: FakeUpstream, other: FakeUpstream) -> AsyncIterator[Gateway]:
    """A gateway that has read both lists."""
    async with gateway_for(settings(one=one, other=other)) as gateway:
        assert await listed(gateway) == ["a", "b"]
        yield gateway


async def listed(gateway: Gateway) -> list[str]:
    return [entry["id"] for entry in (await gateway.client.get("/v1/models")).json()["data"]]


async def asked_at(gateway: Gateway, model: str) -> str:
    """The upstream that answers a request for a model."""
    answer = await gateway.ask(model=model)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-nproxy-upstream"]


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@pytest.mark.usefixtures("old")
async def test_a_known_model_does_not_wait_for_an_upstream_that_hangs(one: FakeUpstream, other: FakeUpstream) -> None:
    async with knowing(one, other) as gateway:
        one.list_hangs = True
        with within(WAIT_SECONDS):
            for _ in range(5):
                assert await asked_at(gateway, "b") == "other"
        assert len([seen for seen in one.requests if seen.closed is None]) <= 1, "one reading at a time"


@pytest.mark.usefixtures("old")
async def test_an_unknown_model_waits_once_for_an_upstream_that_hangs(one: FakeUpstream, other: FakeUpstream) -> None:
    async with knowing(one, other) as gateway:
        one.list_hangs = True
        with within(WAIT_SECONDS + 1):
            assert (await gateway.ask(model="typo")).status_code == 404
        upstream = gateway.app.upstreams.by_name["one"]
        async with asyncio.timeout(20):
            while upstream.models.patience(lost=True):  # until the reading has ended
                await asyncio.sleep(0.05)
        with within(WAIT_SECONDS):
            for _ in range(5):
                assert (await gateway.ask(model="typo")).status_code == 404


@pytest.mark.usefixtures("old")
async def test_a_model_that_was_just_loaded_is_found(one: FakeUpstream, other: FakeUpstream) -> None:
    async with knowing(one, other) as gateway:
        other.models.append("new")
        assert await asked_at(gateway, "new") == "other"
        other.models.append("newer")
        one.list_hangs = True
        with within(WAIT_SECONDS):
            assert await asked_at(gateway, "newer") == "other"


async def test_a_model_that_was_just_loaded_is_shown(one: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "RECENT_SECONDS", 0.0)
    async with gateway_for(settings(one=one)) as gateway:
        assert await listed(gateway) == ["a"]
        one.models.append("new")
        assert (await gateway.client.get("/v1/models/new")).json()["id"] == "new"


async def test_the_first_request_waits_a_moment_for_the_lists_before_its_own(
    one: FakeUpstream, other: FakeUpstream
) -> None:
    one.list_hangs = True
    async with gateway_for(settings(one=one, other=other)) as gateway:
        with within(WAIT_SECONDS + 1):
            assert await asked_at(gateway, "b") == "other"
    async with gateway_for(settings(other=other, one=one)) as gateway:
        with within(WAIT_SECONDS):
            assert await asked_at(gateway, "b") == "other", "nothing after it matters"


async def test_the_list_of_all_is_what_is_known_where_an_upstream_hangs(
    one: FakeUpstream, other: FakeUpstream, old: None
) -> None:
    async with knowing(one, other) as gateway:
        one.list_hangs = True
        other.models.append("new")
        with within(WAIT_SECONDS + 1):
            assert await listed(gateway) == ["a", "b", "new"]


async def test_a_replica_that_hangs_does_not_hide_the_list_of_another(one: FakeUpstream, other: FakeUpstream) -> None:
    one.list_hangs = True
    config = {"upstreams": [{"name": "both", "replicas": [one.url, other.url]}]}
    async with gateway_for(config) as gateway:
        with within(WAIT_SECONDS):
            assert await listed(gateway) == ["b"]


async def test_a_fallback_whose_list_does_not_come_is_tried(one: FakeUpstream, other: FakeUpstream) -> None:
    one.list_hangs = True
    config = settings(one=one)
    config["upstreams"].insert(0, {"name": "gone", "replicas": ["http://127.0.0.1:9/v1"], "models": ["a"]})
    config["upstreams"][0]["fallback"] = ["one"]
    async with gateway_for(config) as gateway:
        with within(WAIT_SECONDS + 2):
            assert await asked_at(gateway, "a") == "one"


async def test_a_fallback_without_a_replica_in_order_is_passed_over_at_once(
    one: FakeUpstream, other: FakeUpstream
) -> None:
    one.list_hangs = True
    other.models = ["a"]
    config = settings(one=one, other=other)
    gone = {"name": "gone", "replicas": ["http://127.0.0.1:9/v1"], "models": ["a"], "fallback": ["one", "other"]}
    config["upstreams"].insert(0, gone)
    async with gateway_for(config) as gateway:
        await listed(gateway)
        gateway.app.upstreams.by_name["one"].gate.replicas[0].health.down = True
        with within(WAIT_SECONDS):
            assert await asked_at(gateway, "a") == "other"


async def test_a_reload_keeps_what_is_known(one: FakeUpstream, other: FakeUpstream) -> None:
    async with knowing(one, other) as gateway:
        one.list_hangs = other.list_hangs = True
        config = gateway.app.config
        changed = [upstream.model_copy(update={"parallel": 7}) for upstream in config.upstreams]
        gateway.app.reconfigure(config.model_copy(update={"upstreams": tuple(changed)}))
        with within(WAIT_SECONDS):
            assert await asked_at(gateway, "b") == "other"


async def test_other_servers_have_their_own_list_read(one: FakeUpstream, other: FakeUpstream) -> None:
    async with gateway_for(settings(one=one)) as gateway:
        assert await listed(gateway) == ["a"]
        gateway.app.reconfigure(Config.model_validate(settings(one=other)))
        assert await listed(gateway) == ["b"]


async def test_the_gateway_is_ready_when_the_first_upstream_answers(one: FakeUpstream, other: FakeUpstream) -> None:
    one.list_hangs = True
    async with gateway_for(settings(one=one, other=other)) as gateway:
        with within(1):
            assert (await gateway.client.get("/ready")).status_code == 200
        async with asyncio.timeout(5):
            while [seen for seen in one.requests if seen.closed is None]:  # nobody waits for it any more
                await asyncio.sleep(0.01)


async def test_the_gateway_is_ready_when_the_first_replica_answers(one: FakeUpstream, other: FakeUpstream) -> None:
    one.list_hangs = True
    unwatched = {"name": "both", "replicas": [one.url, other.url], "health": {"interval": None}}
    async with gateway_for({"upstreams": [unwatched]}) as gateway:
        with within(1):
            assert (await gateway.client.get("/ready")).status_code == 200
