"""Calls that are stuck at a replica which is down are given up as soon as another one can take them."""

from __future__ import annotations

import asyncio

import pytest

from nproxy import config
from nproxy.choices.events import Failure, FailureKind
from nproxy.upstreams.breaker import State
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.cancel_handle import CancelHandle, GivenUpError
from nproxy.upstreams.gate import Gate, Policy
from nproxy.upstreams.replicas import Replica
from tests.upstreams.held import held

CUT = Failure(FailureKind.CUT, "It broke off.")


class Scene:
    """Two replicas: calls are stuck at one, which is found down while the breaker of the other is open."""

    def __init__(self, seconds: float, *, resumes: bool = False) -> None:
        breaker = config.Breaker(in_a_row=1, open=seconds)
        self.stuck, self.other = (Replica(base=f"http://{name}/v1", socket=None, label=name) for name in "ab")
        self.gate = Gate([self.stuck, self.other], Policy(breaker=breaker, resumes=resumes, health=config.Health()))
        self.calls: list[asyncio.Task[str]] = []

    async def begin(self, calls: int, *, spoken: bool = False) -> None:
        self.calls = [asyncio.create_task(self.wait(spoken=spoken)) for _ in range(calls)]
        self.other.draining = True
        self.stuck.health.began(0.0, 0.0)
        assert [self.gate.note_check(self.stuck, None) for _ in range(3)] == [False, False, True]
        await asyncio.sleep(0)
        assert not any(call.done() for call in self.calls), "there is nowhere to go"
        self.other.draining = False
        group = CallGroup()
        group.at[0] = self.other
        assert self.gate.judge(group, 0, CUT), "its breaker is open"

    async def wait(self, *, spoken: bool = False, model: str | None = None) -> str:
        line = CancelHandle(self.stuck.cancel_handles, model)
        line.spoken = spoken
        try:
            with line:
                await asyncio.sleep(3600)
        except GivenUpError:
            return "given up"
        return "ended"

    async def tried(self) -> None:
        """Another request tries it as soon as that may be, and hears something."""
        async with asyncio.timeout(5):
            while self.other.breaker_state is State.OPEN:
                await asyncio.sleep(0.01)
        group = CallGroup()
        async with held(self.gate.attempt(1, group)) as replica:
            assert replica is self.other
            self.gate.heard(replica, group)
        for _ in range(3):
            await asyncio.sleep(0)

    @property
    def given_up(self) -> int:
        return sum(call.done() and call.result() == "given up" for call in self.calls)


async def test_all_when_a_breaker_closes_and_one_when_it_lets_calls_through() -> None:
    scene = Scene(0.05)
    await scene.begin(3)
    async with asyncio.timeout(5):
        await asyncio.wait(scene.calls, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0)
    assert scene.given_up == 1, "who is to try it, as nobody else comes"
    await scene.tried()
    assert scene.given_up == 3


async def test_when_an_answer_from_before_went_well() -> None:
    scene = Scene(3600)
    await scene.begin(2)
    group = CallGroup()
    group.at[0] = scene.other
    scene.gate.judge(group, 0, None)
    await asyncio.wait(scene.calls)
    assert scene.given_up == 2


@pytest.mark.parametrize("resumes", [False, True])
async def test_what_has_spoken_only_where_it_can_be_resumed(resumes: bool) -> None:
    scene = Scene(0.05, resumes=resumes)
    await scene.begin(2, spoken=True)
    await scene.tried()
    assert scene.given_up == (2 if resumes else 0)
    for call in scene.calls:
        call.cancel()


async def test_not_where_the_other_one_does_not_serve_its_model() -> None:
    scene = Scene(3600)
    scene.stuck.models, scene.other.models = frozenset({"a"}), frozenset({"b"})
    calls = [asyncio.create_task(scene.wait(model=model)) for model in ("a", "b", None)]
    await asyncio.sleep(0)
    scene.stuck.health.began(0.0, 0.0)
    for _ in range(3):
        scene.gate.note_check(scene.stuck, None)
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0)
    assert [call.done() for call in calls] == [False, True, True]
    calls[0].cancel()
