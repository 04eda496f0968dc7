"""L3, N3, N4 and N5: permits are taken together; requests wait for them in a fair order, and not for ever."""

from __future__ import annotations

import asyncio
from itertools import groupby
from operator import itemgetter
from typing import Any

import pytest

from tests.conformance.scene import Scene
from tests.conformance.settings import everywhere, of_several
from tests.gateway.conftest import Gateway, envelope
from tests.gateway.raw import WITHIN, gauges_return, open_request
from tests.waiting import until

ANN, BOB = {"authorization": "Bearer ann"}, {"authorization": "Bearer bob"}


def limits(inflight: int, **more: Any) -> dict[str, Any]:
    return {"n_policy": {"max_n": min(8, inflight)}, "limits": {"inflight_choices": inflight, **more}}


class Asked:
    """A request in flight for so many choices. headers: hold the client's key."""

    def __init__(self, scene: Scene, n: int, headers: dict[str, str] | None = None) -> None:
        self.task = asyncio.create_task(scene.send(n=n, headers=headers))

    async def status(self) -> int:
        return (await self.task).status_code


async def asked_and_held(scene: Scene, n: int, headers: dict[str, str] | None = None) -> tuple[Asked, asyncio.Event]:
    """Make a request whose calls the upstream holds until the returned event is set."""
    held = asyncio.Event()
    scene.does(hold=held)
    asked = Asked(scene, n, headers)
    await until(lambda: choices_sent(scene) == n, WITHIN)
    return asked, held


async def asked_and_waiting(scene: Scene, gateway: Gateway, n: int, headers: dict[str, str] | None = None) -> Asked:
    """Make a request that has to wait."""
    before = gateway.app.admission.waiting
    asked = Asked(scene, n, headers)
    await until(lambda: gateway.app.admission.waiting == before + n, WITHIN)
    return asked


def choices_sent(scene: Scene) -> int:
    """Number of choices that the upstream was asked for."""
    return sum(call.body.get("n") or 1 for call in scene.calls)


@of_several
async def test_N3_permits_are_taken_together_or_not_at_all(scene: Scene) -> None:
    """Two requests of 3 with 5 permits: the second waits for all of its permits, and sends nothing meanwhile."""
    gateway = await scene.start(config=limits(5))
    first, held = await asked_and_held(scene, 3)
    second = await asked_and_waiting(scene, gateway, 3)
    third = await asked_and_waiting(scene, gateway, 5)
    assert choices_sent(scene) == 3
    assert gateway.app.admission.taken == 3
    held.set()
    assert [await asked.status() for asked in (first, second, third)] == [200, 200, 200]
    await gauges_return(gateway)


@of_several
@pytest.mark.parametrize(
    "narrow",
    [{"limits": {"per_key_choices": 2}}, {"limits": {"choices_per_minute": 2}}, {"max_inflight": 2}],
    ids=["key", "rate", "upstream"],
)
async def test_N3_wider_than_a_limit_is_never_a_429(scene: Scene, narrow: dict[str, Any]) -> None:
    settings = {key: value for key, value in narrow.items() if key == "max_inflight"}
    await scene.start(config={"limits": narrow.get("limits", {})}, **settings)
    error = await scene.refused(400)
    assert (error["param"], error["code"]) == ("n", "integer_above_max_value")
    assert "2" in error["message"]
    assert (await scene.refused(400, n=1, best_of=3))["param"] == "best_of"
    assert scene.calls == []
    assert (await scene.send(n=2)).status_code == 200


@of_several
async def test_N4_neither_wide_nor_narrow_ones_starve(scene: Scene) -> None:
    gateway = await scene.start(config=limits(8))
    running, held = await asked_and_held(scene, 4, BOB)
    wide = await asked_and_waiting(scene, gateway, 8, ANN)
    behind = await asked_and_waiting(scene, gateway, 8, ANN)
    narrow = await asked_and_waiting(scene, gateway, 1, BOB)
    assert choices_sent(scene) == 4, "there is room for the narrow one, and it is kept for the wide one"
    held.set()
    statuses = [await asked.status() for asked in (running, wide, behind, narrow)]
    assert statuses == [200, 200, 200, 200]
    keys = [(call.headers["authorization"], call.body.get("n") or 1) for call in scene.calls]
    turns = [(key[-3:], sum(n for _, n in calls)) for key, calls in groupby(keys, itemgetter(0))]
    # the narrow request overtakes the second wide one, because its key has had less
    assert turns == [("bob", 4), ("ann", 8), ("bob", 1), ("ann", 8)]
    await gauges_return(gateway)


@everywhere
async def test_N5_a_full_queue_is_a_429(scene: Scene) -> None:
    gateway = await scene.start(config=limits(3, queue_choices=2))
    running, held = await asked_and_held(scene, 3)
    waits = await asked_and_waiting(scene, gateway, 2)
    for _ in range(2):  # the second time before its body is read
        answer = await scene.send(n=1)
        assert answer.status_code == 429
        assert envelope(answer)["code"] == "overloaded"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert choices_sent(scene) == 3
    held.set()
    assert [await running.status(), await waits.status()] == [200, 200]
    assert (await scene.send(n=1)).status_code == 200
    await gauges_return(gateway)


@everywhere
async def test_N5_waiting_too_long_is_a_429(scene: Scene) -> None:
    gateway = await scene.start(config=limits(3, queue_seconds=0.1))
    running, held = await asked_and_held(scene, 3)
    answer = await scene.send(n=1)
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert choices_sent(scene) == 3
    held.set()
    assert await running.status() == 200
    await gauges_return(gateway)


@everywhere
async def test_L3_a_client_that_leaves_the_queue_made_no_call(scene: Scene) -> None:
    gateway = await scene.start(config=limits(3, queue_seconds=2))
    running, held = await asked_and_held(scene, 3)
    _, writer = await open_request(gateway, scene.fields(n=2))
    await until(lambda: gateway.app.admission.waiting == 2, WITHIN)
    writer.close()
    await until(lambda: gateway.app.admission.waiting == 0, WITHIN)
    held.set()
    assert await running.status() == 200
    assert choices_sent(scene) == 3
    assert await Asked(scene, 3).status() == 200, "all permits are there"
    await gauges_return(gateway)
