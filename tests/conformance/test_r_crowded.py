"""R11: a server that takes a few calls at once and refuses further ones, like an Ollama whose queue is full."""

from __future__ import annotations

import asyncio

import pytest

from tests.conformance.scene import SEED, Scene
from tests.conformance.settings import of_legs
from tests.fakes.behaviour import Behaviour, said
from tests.fakes.upstream import Seen
from tests.transcripts.recorded import load

N = 6
ROOM = 2
TEXTS = {index: said(SEED + index) for index in range(N)}
FULL = load("ollama", "busy").body


class Room:
    """A server's capacity for ROOM calls. taken: the calls that it took. refused: how many it refused."""

    def __init__(self, scene: Scene, code: int, hold: asyncio.Event) -> None:
        self.taken: list[Seen] = []
        self.refused = 0
        self._behaviour = scene.behaviour(hold=hold)
        self._full = Behaviour(status=code, body=FULL, content_type="application/json")
        scene.upstream.choose = self._choose

    def _choose(self, seen: Seen) -> Behaviour:
        if sum(one.closed is None for one in self.taken) >= ROOM:
            self.refused += 1
            return self._full
        self.taken.append(seen)
        return self._behaviour


@pytest.mark.parametrize("code", [429, 503])
@pytest.mark.parametrize("stream", [False, True])
@of_legs
async def test_R11_calls_for_which_there_is_no_room_are_made_as_others_end(
    scene: Scene, stream: bool, code: int
) -> None:
    gateway = await scene.start(retries={"per_leg": 1, "budget": 1}, breaker=None)
    hold = asyncio.Event()
    room = Room(scene, code, hold)
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(scene.either(stream, n=N))
        await scene.upstream.until(lambda: room.refused > N - ROOM)
        await asyncio.sleep(0.3)  # longer than the pause before a retry
        assert room.refused <= 2 * (N - ROOM), "each was tried again at most once, and then waits"
        hold.set()
    answer = asked.result()
    assert answer.texts == TEXTS and set(answer.finishes) == set(TEXTS)
    assert len(room.taken) == N and room.refused <= 3 * (N - ROOM)
    assert await gateway.metric('nproxy_anomalies_total{kind="crowded",upstream="fake"}') == 1


@of_legs
async def test_R11_where_none_is_served_the_request_fails_at_once(scene: Scene) -> None:
    await scene.start(retries={"per_leg": 1})
    hold = asyncio.Event()  # a call that is refused before others are made waits for these
    scene.does(status=503, body=FULL, content_type="application/json", hold=hold)
    async with asyncio.TaskGroup() as group:
        group.create_task(scene.refused(503, n=N))
        await scene.upstream.until(lambda: len(scene.calls) == N)
        hold.set()
    assert len(scene.calls) <= 2 * N, "each was tried again once, and nobody else's end was waited for"


@of_legs
async def test_R11_a_request_that_comes_to_a_full_server_waits_for_its_turn(scene: Scene) -> None:
    """A request for one choice does not wait for all choices of another request, and calls once or twice."""
    await scene.start(breaker=None)
    hold = asyncio.Event()
    room = Room(scene, 429, hold)
    async with asyncio.TaskGroup() as group:
        many = group.create_task(scene.whole(n=N))
        await scene.upstream.until(lambda: room.refused >= N - ROOM)
        one = group.create_task(scene.whole(n=1))
        await asyncio.sleep(0.1)
        assert len(room.taken) == ROOM
        hold.set()
    assert one.result().texts == {0: said(SEED)} and many.result().texts == TEXTS
    assert len(room.taken) == N + 1


@of_legs
async def test_R11_who_has_waited_long_enough_is_told_what_the_server_says(scene: Scene) -> None:
    await scene.start(breaker=None, config={"limits": {"queue_seconds": 0.5}})
    hold = asyncio.Event()
    room = Room(scene, 429, hold)
    async with asyncio.TaskGroup() as group:
        served = group.create_task(scene.whole(n=ROOM))
        await scene.upstream.until(lambda: len(room.taken) == ROOM)
        await scene.refused(429, n=1)
        hold.set()
    assert len(served.result().texts) == ROOM


@of_legs
async def test_R11_also_a_request_that_takes_fewer_choices_is_told_then(scene: Scene) -> None:
    """Its choices do not wait one after the other."""
    limits, policy = {"queue_seconds": 0.5}, {"on_leg_failure": "partial"}
    await scene.start(breaker=None, config={"limits": limits, "n_policy": policy})
    hold = asyncio.Event()
    room = Room(scene, 429, hold)
    async with asyncio.TaskGroup() as group:
        group.create_task(scene.whole(n=ROOM))
        await scene.upstream.until(lambda: len(room.taken) == ROOM)
        async with asyncio.timeout(4.0):
            await scene.refused(429, n=N)
        hold.set()


@of_legs
async def test_R11_those_that_come_later_do_not_pass_by_those_that_wait(scene: Scene) -> None:
    await scene.start(breaker=None)
    hold = asyncio.Event()
    room = Room(scene, 429, hold)
    async with asyncio.TaskGroup() as group:
        group.create_task(scene.whole(n=N))
        await scene.upstream.until(lambda: room.refused >= N - ROOM)
        refused = room.refused
        later = [group.create_task(scene.whole(n=1)) for _ in range(8)]
        await asyncio.sleep(0.1)
        assert room.refused <= refused + 1, "they do not ask a server that is known to be full"
        hold.set()
    assert all(one.result().texts == {0: said(SEED)} for one in later)
