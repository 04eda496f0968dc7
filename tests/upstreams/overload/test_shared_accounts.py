"""Models and keys that share the room of a server, or have some of their own; in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from nproxy.upstreams.call_group import AccountKey
from nproxy.upstreams.overload.shared_capacity import OwnLimit
from tests.upstreams.overload.full_server import Refused, Server, play

BUSY, OTHER = ("busy", ""), ("other", "")


class Clients:
    """Each asks again as soon as it has an answer, or half a second after a refusal."""

    def __init__(self, server: Server, seconds: float) -> None:
        self._server, self._seconds = server, seconds
        self.answered: Counter[AccountKey] = Counter()
        self.refused: dict[AccountKey, list[float]] = {}

    async def ask(self, accounts: Iterable[AccountKey], n: int = 1) -> None:
        async with asyncio.TaskGroup() as tasks:
            for place, account in enumerate(accounts):
                tasks.create_task(self._ask(account, n, place / 7))

    async def _ask(self, account: AccountKey, n: int, at: float) -> None:
        server = self._server
        await asyncio.sleep(at)
        turn = 0
        while server.now < self._seconds:
            since, turn = server.now, turn + 1
            try:
                await server.request(n, account=account, seconds=server.seconds * (0.7 + 0.6 * (turn * 5 % 11) / 10))
                self.answered[account] += 1
            except Refused:
                self.refused.setdefault(account, []).append(server.now - since)
                await asyncio.sleep(0.5)


@pytest.mark.parametrize(("clients", "n", "room"), [(8, 1, 4), (3, 8, 4), (2, 1, 1)])
@pytest.mark.parametrize("wait", [None, 1.0, 5.0])
def test_a_busy_model_leaves_room_for_another_one(clients: int, n: int, room: int, wait: float | None) -> None:
    """Which has one client: its turn comes at the next end, and then at every other one."""

    async def scene() -> None:
        server = Server(room, 0.5, wait=wait)
        asked = Clients(server, 200.0)
        await asked.ask([*[BUSY] * clients, OTHER], n)
        assert not asked.refused
        assert asked.answered.total() * n > 0.95 * room * 200 / 0.5
        assert asked.answered[OTHER] > 1.2 * asked.answered[BUSY] / clients

    play(scene)


@pytest.mark.parametrize("late", [0.0, 0.02])
def test_keys_of_their_own_take_turns_as_one_key_does(late: float) -> None:
    async def scene() -> None:
        server = Server(4, late=late)
        keys = [("m", f"key {number}") for number in range(20)]
        asked = Clients(server, 200.0)
        await asked.ask(keys)
        assert sum(map(len, asked.refused.values())) <= 2
        answers = [asked.answered[key] for key in keys]
        assert min(answers) > 0.9 * 200 * 4 / (1.0 + late) / 20 * (1.0 if not late else 0.9)
        assert max(answers) < 1.1 * 200 * 4 / 20

    play(scene)


@pytest.mark.parametrize("wait", [None, 2.0])
def test_an_account_that_has_nothing_left_costs_a_busy_one_nothing(wait: float | None) -> None:
    async def scene() -> None:
        server = Server(4, each={"other": 0}, wait=wait)
        asked = Clients(server, 200.0)
        await asked.ask([*[BUSY] * 8, OTHER])
        assert BUSY not in asked.refused
        assert asked.answered[BUSY] > 0.97 * 200 * 4
        told = asked.refused[OTHER]
        assert sum(seconds > 0.2 for seconds in told) <= 200 / OwnLimit.SECONDS + 1, "it waits until that has shown"
        assert max(told) < 11.0

    play(scene)


@pytest.mark.parametrize("how", [{}, {"wait": 1.0}, {"late": 0.02}, {"late": 0.02, "wait": 1.0}])
def test_each_has_all_its_room_where_that_is_its_own(how: dict[str, Any]) -> None:
    async def scene() -> None:
        server = Server(4, each={"other": 2}, **how)
        asked = Clients(server, 200.0)
        await asked.ask([*[BUSY] * 8, *[OTHER] * 8])
        assert sum(map(len, asked.refused.values())) <= 2
        assert asked.answered[BUSY] > 0.9 * 200 * 4
        assert asked.answered[OTHER] > 0.9 * 200 * 2

    play(scene)


def test_accounts_that_wait_for_a_long_answer_share_the_probes() -> None:
    def refused(accounts: int) -> int:
        """How often a server that is full refuses them."""
        refusals: list[float] = []

        async def scene() -> None:
            server = Server(1, 200.0)
            server.gate.patience = 300.0
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(server.request(1))
                for number in range(accounts):
                    tasks.create_task(server.request(1, at=1.0, seconds=0.1, account=("m", f"key {number}")))
            refusals.extend(at for at in server.refusals if at < 200)

        play(scene)
        return len(refusals)

    assert refused(8) < 8 * refused(1) / 2


def test_refusals_in_one_moment_prove_no_separate_limit() -> None:
    """New accounts may take several freed slots at once, without that telling anything of limits."""
    limit = OwnLimit()
    for number in range(50):
        limit.note_refused(number / 1000)
    assert not limit.believed(0.1)
    for number in range(OwnLimit.REFUSALS):
        limit.note_refused(1.0 + number)
    assert limit.believed(6.0)
