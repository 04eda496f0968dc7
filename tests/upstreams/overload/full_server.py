"""Servers with capacity for a few calls, and requests whose legs call them; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from nproxy.choices.events import Failure, FailureKind
from nproxy.upstreams.call_group import AccountKey, CallGroup
from nproxy.upstreams.gate import Gate, Policy
from nproxy.upstreams.replicas import Replica
from tests.upstreams.conftest import replicas
from tests.upstreams.held import held
from tests.virtual_time import run

ACCOUNT = ("m", "")


class Refused(Exception):
    """A leg is refused for good."""


class Server:
    """Servers with capacity for `room` calls each, or by label. They answer after `seconds`.

    late: seconds after an answer until its capacity is given back. wait: the Retry-After of refusals; a dict gives it
    by label. sure: whether a refusal says that capacity is missing. odd: whether a call, given by its number, fails
    although there is capacity. beside: these are the same servers as those of another gateway. each: every account has
    a capacity of its own; a dict gives it by model.
    """

    def __init__(self, room: int | dict[str, int], seconds: float = 1.0, **how: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.room = room
        self.seconds = seconds
        self.late: float = how.get("late", 0.0)
        wait: float | dict[str, float] | None = how.get("wait")
        self.wait = wait if isinstance(wait, dict) else {f"r{place}": wait for place in range(how.get("count", 1))}
        self.sure: bool = how.get("sure", True)
        self.odd: Callable[[int], bool] = how.get("odd", lambda number: False)
        self.gate = Gate(replicas(how.get("count", 1)), Policy(), draw=lambda: 0.5, clock=self.loop.time)
        self.each: bool | dict[str, int] = how.get("each", False)
        beside: Server | None = how.get("beside")
        self.inside: dict[str, int] = {} if beside is None else beside.inside
        self.calls = 0
        self.refusals: list[float] = []
        self.refused: set[CallGroup] = set()
        self.served: list[tuple[int, int]] = []
        self._began = self.loop.time()

    @property
    def now(self) -> float:
        return self.loop.time() - self._began

    def takes(self, replica: Replica, group: CallGroup) -> bool:
        room = self.room if isinstance(self.room, int) else self.room[replica.label]
        if isinstance(self.each, dict):
            room = self.each.get(group.model or "", room)
        number, self.calls = self.calls, self.calls + 1
        place = self._place(replica, group)
        if self.inside.get(place, 0) >= room or self.odd(number) or group in self.refused:
            self.refusals.append(self.now)
            return False
        self.inside[place] = self.inside.get(place, 0) + 1
        return True

    def _place(self, replica: Replica, group: CallGroup) -> str:
        return f"{replica.label} {group.account}" if self.each else replica.label

    async def answer(self, replica: Replica, group: CallGroup, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            if self.late:
                self.loop.call_later(self.late, self._give_back, self._place(replica, group))
            else:
                self._give_back(self._place(replica, group))

    def _give_back(self, place: str) -> None:
        self.inside[place] -= 1

    async def leg(self, group: CallGroup, number: int, seconds: float | None = None) -> None:
        """Run a leg. It is tried twice, and waits for capacity whenever it is told to."""
        waits, tried = False, False
        while True:
            attempt = self.gate.attempt(1, group, leg=number, waits=waits)
            async with held(attempt) as replica:
                await asyncio.sleep(0)  # the request's way to the server
                if self.takes(replica, group):
                    await self.answer(replica, group, self.seconds if seconds is None else seconds)
                    attempt.end = "whole"
                    self.served.append((id(group), number))
                    self.gate.judge(group, number, None)
                    return
                failure = Failure(FailureKind.STATUS, "full", status=429)
                self.gate.judge(group, number, failure)
                wait = self.wait.get(replica.label)
                room = attempt.refused(wait, sure=self.sure)
                if wait is not None:
                    replica.rest(wait, self.loop.time())
            if not room and (tried or waits):
                raise Refused
            if not room:
                await asyncio.sleep(0.125)
            waits, tried = bool(room), True

    async def request(
        self,
        n: int,
        at: float = 0.0,
        seconds: float | None = None,
        *,
        too_much: bool = False,
        account: AccountKey = ACCOUNT,
    ) -> float:
        """Run the legs of a request; return when all had their answers. Raises Refused if one is refused for good.

        at: seconds until it begins. too_much: it is refused even if there is capacity.
        """
        await asyncio.sleep(at)
        group = CallGroup(account[0], account=account)
        if too_much:
            self.refused.add(group)
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(n):
                    tasks.create_task(self.leg(group, number, seconds))
        except* Refused:
            raise Refused(self.now) from None
        return self.now


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(scene())
