"""R9, R10: llama-cpp-python's server: another call ends a stream, and most request ids are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance.scene import COMPLETIONS, SEED, Scene
from tests.conformance.settings import everywhere, of_legs, of_one
from tests.fakes.behaviour import said

N = 4
WIDE = {index: said(SEED + index) for index in range(N)}


async def status(scene: Scene) -> Any:
    """What /status reports about the upstream."""
    (upstream,) = (await (await scene.gateway()).client.get("/status")).json()["upstreams"]
    return upstream


async def learned(scene: Scene) -> dict[str, Any]:
    """What /status reports as learned about the model."""
    return dict((await status(scene))["learned"].get("fake-model", {}))


async def together(scene: Scene, waiting: int, *streams: Any) -> list[Any]:
    """Play streams; the first call to stream goes on once so many other calls wait for it."""
    await scene.gateway()
    behaviour = scene.does(one_at_a_time=True, hold_after=1)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stream) for stream in streams]
        await scene.upstream.until(lambda: scene.upstream.waiting == waiting)
        behaviour.go_on.set()
    return [task.result() for task in tasks]


async def goes_beside_itself(scene: Scene) -> None:
    """Play a stream whose calls must all be made before any of them is answered."""
    hold = scene.does(hold=asyncio.Event()).hold
    assert hold is not None
    async with asyncio.TaskGroup() as group:
        stream = group.create_task(scene.stream())
        await scene.upstream.until(lambda: len(scene.upstream.open_calls) == scene.legs)
        hold.set()
    assert stream.result().texts == scene.said


@of_legs
async def test_R9_legs_that_were_cut_are_called_one_at_a_time(scene: Scene) -> None:
    (answer,) = await together(scene, N - 1, scene.stream(n=N))
    assert answer.texts == WIDE
    assert len(scene.calls) == 2 * N - 1, "the last one is not cut"
    assert (await learned(scene))["parallel"] == 1
    gateway = await scene.gateway()
    assert await gateway.metric('nproxy_retries_total{reason="interrupted",upstream="fake"}') == N - 1
    assert await gateway.metric('nproxy_capability{model="fake-model",name="parallel",upstream="fake"}') == 1
    behaviour = scene.does(one_at_a_time=True, hold_after=1)
    async with asyncio.TaskGroup() as group:
        both = [group.create_task(scene.stream(n=N)) for _ in range(2)]
        while not (await status(scene))["legs_waiting"]:
            assert len(scene.upstream.open_calls) < 2, "the other request's call waits its turn as well"
        behaviour.go_on.set()
    assert [task.result().texts for task in both] == [WIDE, WIDE]
    assert len(scene.calls) == 4 * N - 1, "and none was cut"


@of_one
async def test_R9_streams_of_several_clients(scene: Scene) -> None:
    for answer in await together(scene, 2, scene.stream(), scene.stream(), scene.stream()):
        assert answer.texts == scene.said, answer.error
    assert (await learned(scene))["parallel"] == 1


@of_legs
async def test_R9_what_the_client_has_read_is_not_said_twice(scene: Scene) -> None:
    """A completion's text begins with its first event. So this request fails; the next makes one call at a time."""
    (answer,) = await together(scene, N - 1, scene.stream(COMPLETIONS, n=N))
    assert "`parallel: 1`" in answer.error["message"]
    assert "parallel" not in await learned(scene), "that it helps is not known yet"
    assert (await scene.stream(COMPLETIONS, n=N)).texts == WIDE
    assert (await learned(scene))["parallel"] == 1
    assert len(scene.calls) == 2 * N


@of_legs
@pytest.mark.parametrize("end", ["cut", "reset", "close"])
async def test_R9_an_answer_that_was_cut_teaches_nothing(scene: Scene, end: Any) -> None:
    scene.choice_does(1, end_after=2, end=end)
    assert (await scene.stream()).error is not None
    assert "parallel" not in await learned(scene) and len(scene.calls) == 3
    scene.upstream.choose = None
    await goes_beside_itself(scene)


@of_legs
async def test_R9_streams_that_never_say_why_they_end_are_no_such_thing(scene: Scene) -> None:
    scene.does(finish=None)
    for _ in range(2):
        assert (await scene.stream()).error is not None
    assert "parallel" not in await learned(scene)
    await goes_beside_itself(scene)


@everywhere
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_R10_an_id_that_is_refused(scene: Scene, stream: bool) -> None:
    scene.does(request_id=False)
    for _ in range(2):
        assert (await scene.either(stream)).texts == scene.said
    sent = ["x-request-id" in call.headers for call in scene.calls]
    assert sorted(sent) == [False] * 2 * scene.legs + [True] * scene.legs, "with it once"
    assert not any(sent[2 * scene.legs :]), "and not by the second request"
    assert (await learned(scene))["request_id"] is False
    assert await scene.anomalies("request_id_refused") == 1
