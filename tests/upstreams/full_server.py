"""Servers that have room for a few calls, and legs of requests that come to them; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from nproxy.choices.events import Failure, FailureKind
from nproxy.upstreams.call_group import Account, CallGroup
from nproxy.upstreams.gate import Gate, Policy
from nproxy.upstreams.replicas import Replica
from tests.upstreams.conftest import replicas
from tests.virtual_time import run

ACCOUNT = ("m", "")


class Refused(Exception):
    """A leg's refusal stands."""


class Server:
    """Servers with room for so many calls each, which answer after `seconds`.

    late: seconds behind an answer, after which its room is given back. wait: what a refusal asks for. odd: numbers of
    calls that fail though there is room. beside: the same servers, asked by another gateway. each: every account has
    so much room for itself, and by its model's name maybe another number.
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
        """A leg that is tried once more, and waits for room as often as it is told to."""
        waits, tried = False, False
        while True:
            permit = self.gate.permit(1, group, leg=number, waits=waits)
            async with permit as replica:
                await asyncio.sleep(0)  # the way there
                if self.takes(replica, group):
                    await self.answer(replica, group, self.seconds if seconds is None else seconds)
                    permit.end = "whole"
                    self.served.append((id(group), number))
                    self.gate.judge(group, number, None)
                    return
                failure = Failure(FailureKind.STATUS, "full", status=429)
                self.gate.judge(group, number, failure)
                wait = self.wait.get(replica.label)
                room = permit.refused(wait, sure=self.sure)
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
        account: Account = ACCOUNT,
    ) -> float:
        """A request's legs; gives when it was whole. Raises Refused where one is refused for good.

        too_much: it is refused, whatever room there is.
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
