"""S: several servers behind one gateway, some of which fail, break off or are drained: the client gets its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from nproxy.gateway.admin.gateway import SingleProcess
from nproxy.gateway.admin.port import admin_port
from nproxy.upstreams import breaker
from nproxy.upstreams.registrar import Registrar
from tests.clients import plain_client
from tests.conformance.scene import Scene
from tests.conformance.settings import NATIVE, ONE, everywhere, settings
from tests.fakes.behaviour import Behaviour
from tests.fakes.upstream import MODEL, FakeUpstream, Seen
from tests.gateway.conftest import Gateway, envelope

CALLS_ALONE: dict[str, Any] = {"health": {"interval": None}}
"""There are no health checks; only calls show the state of a server."""
ONE_FAILURE = {"in_a_row": 1, "open": 3600}


@pytest.fixture
async def other(scene: Scene) -> AsyncIterator[FakeUpstream]:
    """A second server like that of the scene."""
    async with FakeUpstream(scene.behaviour()) as server:
        yield server


async def pair(scene: Scene, other: FakeUpstream, *, config: dict[str, Any] | None = None, **settings: Any) -> Gateway:
    """Start the gateway with both servers as replicas of one upstream."""
    replicas = [scene.upstream.url, other.url]
    return await scene.start(config=config, replicas=replicas, **{**CALLS_ALONE, **settings})


async def chain(scene: Scene, other: FakeUpstream) -> Gateway:
    """Start the gateway with the other server as an upstream of its own, to which the first one falls back."""
    n = "native" if scene.setting.native else "fanout"
    common = {**CALLS_ALONE, "n": n, "models": [MODEL], "retries": {"per_leg": 0}}
    first = {"name": "first", "replicas": [scene.upstream.url], "fallback": ["second"], **common}
    second = {"name": "second", "replicas": [other.url], **common}
    return await scene.start(config={"upstreams": [first, second]})


def again(call: Seen) -> bool:
    """Whether this is not the first call of its leg."""
    return "-r" in call.headers["x-request-id"][-4:]


def at_first(first: Behaviour, then: Behaviour | None = None) -> Callable[[Seen], Behaviour | None]:
    """Answer the first call of each leg with `first`, at whichever server, and later calls with `then`."""
    return lambda call: then if again(call) else first


def broken_off(scene: Scene) -> Behaviour:
    """Sends two words of a choice, or one and a half if the call has several choices, and breaks off."""
    return scene.behaviour(end_after=2 * (scene.n if scene.setting.native else 1) + 1)


def seeds(server: FakeUpstream, *, second: bool) -> set[int]:
    return {call.body["seed"] for call in server.calls if again(call) == second}


@pytest.mark.parametrize("stream", [False, True])
@everywhere
async def test_S1_a_call_that_failed_goes_to_another_server(scene: Scene, other: FakeUpstream, stream: bool) -> None:
    scene.upstream.choose = other.choose = at_first(Behaviour(status=503))
    await pair(scene, other)
    answer = await scene.either(stream)
    assert answer.texts == scene.said and answer.finishes == scene.stopped
    assert seeds(scene.upstream, second=False) == seeds(other, second=True)
    assert seeds(other, second=False) == seeds(scene.upstream, second=True)


@everywhere
async def test_S2_a_server_that_failed_is_passed_over(scene: Scene, other: FakeUpstream) -> None:
    scene.does(status=500)
    await pair(scene, other, breaker=ONE_FAILURE, retries={"per_leg": 0})
    codes = [(await scene.send()).status_code for _ in range(10)]
    assert codes.count(500) <= 1 and set(codes) <= {200, 500}
    assert len(scene.calls) <= scene.legs


@everywhere
async def test_S3_where_all_have_failed_nobody_is_asked(
    scene: Scene, other: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "LAST_RESORT_SECONDS", 3600.0)
    scene.does(hold=asyncio.Event())
    other.behaviour = scene.behaviour(hold=asyncio.Event())
    brief = {"first_event": 0.2, "response": 0.2}
    await pair(scene, other, breaker=ONE_FAILURE, retries={"per_leg": 0}, timeouts=brief)
    codes = [(await scene.send()).status_code for _ in range(2)]
    assert codes[0] == 504, "one call at each is enough, be it of one request or of two"
    asked = len(scene.calls) + len(other.calls)
    refused = await scene.send()
    assert refused.status_code == 503 and envelope(refused)["code"] == "upstream_unavailable"
    assert int(refused.headers["retry-after"]) >= 1
    assert len(scene.calls) + len(other.calls) == asked


@everywhere
async def test_S11_one_that_answers_is_asked_on_where_all_have_failed(scene: Scene, other: FakeUpstream) -> None:
    scene.upstream.choose = other.choose = lambda seen: (
        scene.behaviour(status=500) if "poison" in str(seen.body["messages"]) else None
    )
    await pair(scene, other, breaker=ONE_FAILURE, retries={"per_leg": 0})
    for _ in range(4):
        assert (await scene.send(messages=[{"role": "user", "content": "poison"}])).status_code == 500
    answer = await scene.whole()
    assert answer.texts == scene.said and answer.finishes == scene.stopped


@pytest.mark.parametrize("bad", [{"status": 503}, {"before_head": "reset"}])
@pytest.mark.parametrize("stream", [False, True])
@everywhere
async def test_S4_another_upstream_answers(
    scene: Scene, other: FakeUpstream, stream: bool, bad: dict[str, Any]
) -> None:
    scene.does(**bad)
    await chain(scene, other)
    answer = await scene.either(stream)
    assert answer.texts == scene.said and answer.finishes == scene.stopped
    assert (await scene.send(stream=stream)).headers["x-nproxy-upstream"] == "second"


@everywhere
async def test_S5_what_has_begun_is_not_begun_anew(scene: Scene, other: FakeUpstream) -> None:
    scene.upstream.behaviour = broken_off(scene)
    await chain(scene, other)
    answer = await scene.stream()
    assert answer.error is not None and not other.calls
    assert all(scene.said[index].startswith(text) for index, text in answer.texts.items())


@pytest.mark.parametrize("end", ["cut", "error"])
@everywhere
async def test_S6_a_stream_that_broke_off_goes_on_elsewhere(scene: Scene, other: FakeUpstream, end: Any) -> None:
    await pair(scene, other, resume="replay")
    usage = {"include_usage": True}
    undisturbed = await scene.stream(stream_options=usage)
    cut = broken_off(scene)
    cut.end = end
    scene.upstream.choose = other.choose = at_first(cut)
    answer = await scene.stream(stream_options=usage)
    assert answer.error is None
    assert answer.texts == undisturbed.texts == scene.said
    assert answer.finishes == scene.stopped and answer.usage == undisturbed.usage
    assert any(map(again, [*scene.calls, *other.calls]))


@everywhere
async def test_S7_another_answer_does_not_go_on_behind_it(scene: Scene, other: FakeUpstream) -> None:
    await pair(scene, other, resume="replay")
    differs = scene.behaviour(pieces=lambda seed: ["something", " quite", " different", "!"])
    scene.upstream.choose = other.choose = at_first(broken_off(scene), differs)
    answer = await scene.stream()
    assert answer.error is not None
    assert all(scene.said[index].startswith(text) for index, text in answer.texts.items())


@everywhere
async def test_S8_a_server_that_is_drained_ends_what_it_has(scene: Scene, other: FakeUpstream) -> None:
    gateway = await pair(scene, other, config={"admin": {"port": 0}})
    held = scene.does(hold_after=2)
    other.behaviour = held
    async with (
        admin_port(SingleProcess(gateway.app), Registrar(gateway.app.upstreams.take_members)) as url,
        plain_client(url) as admin,
        asyncio.TaskGroup() as group,
    ):
        begun = group.create_task(scene.stream())
        async with asyncio.timeout(20):
            while len(scene.calls) + len(other.calls) < scene.legs:
                await asyncio.sleep(0.01)
        drained = scene.upstream if scene.calls else other
        told = await admin.post("/admin/upstreams/fake/replicas/drain", json={"url": drained.url})
        assert told.status_code == 200
        had = len(drained.calls)
        scene.does()
        other.behaviour = scene.behaviour()
        for _ in range(4):
            assert (await scene.whole()).texts == scene.said
        assert len(drained.calls) == had
        held.go_on.set()
    answer = begun.result()
    assert answer.texts == scene.said and answer.finishes == scene.stopped


@settings(NATIVE, ONE, why="calls that do not fit beside each other at one server go elsewhere")
async def test_S9_requests_that_begin_alike_go_to_one_server(scene: Scene, other: FakeUpstream) -> None:
    await pair(scene, other, balance="prefix_affinity")
    for turn in range(10):
        said = {"role": "user", "content": "What is a hill?"}, {"role": "user", "content": f"And {turn}?"}
        assert (await scene.whole(messages=said)).texts == scene.said
    assert sorted((len(scene.calls), len(other.calls))) == [0, 10]
