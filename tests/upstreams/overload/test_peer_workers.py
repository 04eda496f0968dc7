"""Processes of one gateway that share a full server: each has a gate of its own; in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable

import pytest

from nproxy.upstreams.call_group import AccountKey
from nproxy.upstreams.overload.peer_workers import HANDED_SECONDS, NEWS_SECONDS, TELL_SECONDS, PeerNews, PeerWorkers
from nproxy.upstreams.overload.queues import MOST_ACCOUNTS
from nproxy.upstreams.overload.release_delay import RELEASE_DELAYS
from tests.upstreams.overload.full_server import ACCOUNT, Refused, Server, play


class Processes:
    """So many, with clients each; they hear of each other a little later, as by a parent."""

    def __init__(self, count: int, room: int, seconds: float, **how: object) -> None:
        first = Server(room, seconds, **how)
        self.servers = [first, *(Server(room, seconds, beside=first, **how) for _ in range(count - 1))]
        self.gates = {f"w{number}": server.gate for number, server in enumerate(self.servers)}
        for name, gate in self.gates.items():
            gate.queues.share_room("u", name, self._teller(name))
        self.told: Counter[str] = Counter()
        self.answered: Counter[int] = Counter()
        self.longest: defaultdict[int, float] = defaultdict(float)  # seconds that an answer took
        self.refused: list[float] = []

    def _teller(self, name: str) -> Callable[[PeerNews], None]:
        def tell(news: PeerNews) -> None:
            self.told[news.what] += 1
            hear = [news.process] if news.what == "room" else [one for one in self.gates if one != name]
            for one in hear:
                if one in self.gates:
                    asyncio.get_running_loop().call_later(0.0005, self.gates[one].queues.take_news, news)

        return tell

    async def run(
        self, clients: list[int], seconds: float, n: int = 1, *, rest: float = 0.0, accounts: bool = False
    ) -> None:
        """Clients of each process ask again and again; those of the first come first.

        rest: those of the last stop for so long in the middle. accounts: of each process they are another account's.
        """
        async with self.reminded(), asyncio.TaskGroup() as tasks:
            asking = [
                tasks.create_task(
                    self._ask(
                        number,
                        place * 0.05 + number,
                        seconds,
                        n,
                        rest if number == len(clients) - 1 else 0.0,
                        ("m", str(number)) if accounts else ACCOUNT,
                    )
                )
                for number, count in enumerate(clients)
                for place in range(count)
            ]
            await asyncio.wait(asking)

    @contextlib.asynccontextmanager
    async def reminded(self) -> AsyncIterator[None]:
        """Every two seconds each process tells the others how it stands, while the block runs."""
        async with asyncio.TaskGroup() as tasks:
            reminds = tasks.create_task(self._remind())
            try:
                yield
            finally:
                reminds.cancel()

    async def _remind(self) -> None:
        while True:
            for one in self.gates.values():
                one.queues.remind()
            await asyncio.sleep(2.0)

    async def _ask(self, number: int, at: float, until: float, n: int, rest: float, account: AccountKey) -> None:
        await asyncio.sleep(at)
        server, draw = self.servers[number], random.Random(at)
        while server.now < until:
            if rest and server.now > until / 2:
                await asyncio.sleep(rest)
                rest = 0.0
            since = server.now
            try:
                await server.request(n, seconds=server.seconds * draw.uniform(0.7, 1.3), account=account)
                self.answered[number] += 1
                self.longest[number] = max(self.longest[number], server.now - since)
            except Refused:
                self.refused.append(server.now - since)
                await asyncio.sleep(0.5)


@pytest.mark.parametrize(
    ("clients", "room", "n"), [([5, 3], 1, 1), ([8, 8], 4, 1), ([4, 4, 4, 4], 4, 1), ([3, 3], 8, 8), ([8, 1], 4, 1)]
)
@pytest.mark.parametrize("wait", [None, 1.0, 5.0])
def test_none_keeps_another_from_a_server_that_it_fills(
    clients: list[int], room: int, n: int, wait: float | None
) -> None:
    """Though one may come when others have filled it, and each has only its own ends to see."""

    async def scene() -> None:
        processes = Processes(len(clients), room, 0.5, wait=wait)
        await processes.run(clients, 120.0, n)
        assert len(processes.refused) <= processes.answered.total() / 100
        assert processes.answered.total() * n > 0.95 * room * 120 / 0.5
        for number, count in enumerate(clients):
            share = processes.answered.total() * min(count / sum(clients), 1 / len(clients))
            assert processes.answered[number] > 0.6 * share

    play(scene)


def test_one_that_was_quiet_for_a_while_has_its_turns_again() -> None:
    async def scene() -> None:
        processes = Processes(4, 4, 0.5)
        await processes.run([4, 4, 4, 4], 200.0, rest=3.0)
        assert not processes.refused
        assert min(processes.answered.values()) > 0.8 * max(processes.answered.values())
        assert max(processes.longest.values()) < 6.0

    play(scene)


def test_another_account_has_its_own_room_while_one_waits_elsewhere() -> None:
    async def scene() -> None:
        processes = Processes(2, 2, 0.5, each={"m": 100})
        processes.servers[0].each = processes.servers[1].each = True
        processes.servers[1].room = 100
        await processes.run([8, 12], 100.0, accounts=True)
        assert processes.longest[1] < 0.7, "nobody waits there"
        assert processes.told["room"] == 0

    play(scene)


def test_one_that_is_gone_is_left_no_room() -> None:
    async def scene() -> None:
        processes = Processes(2, 2, 0.5)
        processes.gates["w0"].queues.take_news(PeerNews("u", *ACCOUNT, "waits", "w7"))
        await processes.run([6, 0], 60.0)
        assert processes.told["room"] <= NEWS_SECONDS / 0.25
        assert processes.answered[0] > 0.95 * 60 * 2 / 0.5 - NEWS_SECONDS / 0.25

    play(scene)


def test_where_nobody_waits_little_is_told() -> None:
    async def scene() -> None:
        processes = Processes(2, 100, 0.5)
        await processes.run([10, 10], 60.0)
        assert processes.told["answers"] <= 2 * 60 / 4 and processes.told.total() == processes.told["answers"]

    play(scene)


def test_accounts_of_a_worker_that_is_gone_are_not_counted_for_ever() -> None:
    async def scene() -> None:
        gate = Server(1, 0.5).gate
        gate.queues.share_room("u", "w0", lambda news: None)
        for number in range(40):
            gate.queues.take_news(PeerNews("u", "m", f"key {number}", "waits", "w7"))
        assert len(gate.queues.shared.waiting) == 40
        await asyncio.sleep(NEWS_SECONDS + 0.1)
        gate.queues.remind()
        assert len(gate.queues.shared.waiting) == 0

    play(scene)


def test_accounts_that_are_forgotten_are_not_counted_for_ever() -> None:
    async def scene() -> None:
        gate = Server(1, 0.5).gate
        gate.queues.share_room("u", "w0", lambda news: None)
        for number in range(2 * MOST_ACCOUNTS):
            gate.queues.take_news(PeerNews("u", "m", f"key {number}", "waits", "w7"))
        assert len(gate.queues.shared.waiting) <= MOST_ACCOUNTS

    play(scene)


def test_how_long_another_worker_has_waited_for_a_slot_teaches_nothing_here() -> None:
    async def scene() -> None:
        processes = Processes(2, 1, 0.5, late=0.02)
        await processes.run([4, 4], 120.0)
        assert processes.answered.total() > 0.9 * 120 / 0.525
        delays = [gate.queues.shared.release_delay(gate.replicas[0]).delay for gate in processes.gates.values()]
        assert delays[0] == delays[1] and RELEASE_DELAYS[delays[0]] >= 0.02, delays

    play(scene)


@pytest.mark.parametrize(("workers", "n"), [(2, 1), (4, 1), (2, 8), (4, 8)])
def test_nobody_is_refused_where_all_come_at_once(workers: int, n: int) -> None:
    """To a server that no worker has had an answer of: one of them fills it, and the others do not know that."""

    async def scene() -> None:
        processes = Processes(workers, 4, 1.0)
        async with processes.reminded(), asyncio.TaskGroup() as tasks:
            for number in range(16 // n or 2):
                tasks.create_task(processes.servers[number % workers].request(n))

    play(scene)


def test_clients_who_keep_coming_are_not_refused_either() -> None:
    """A new client each tenth of a second, at one worker or another, to a server that has room for four."""

    async def scene() -> None:
        processes = Processes(4, 4, 1.0)
        async with processes.reminded(), asyncio.TaskGroup() as tasks:
            for number in range(50):
                tasks.create_task(processes.servers[number * 7 % 4].request(1, at=number / 10))

    play(scene)


def test_a_server_that_answers_nobody_is_told_of_soon() -> None:
    async def scene() -> None:
        processes = Processes(4, 0, 1.0)
        began, told = processes.servers[0].now, list[float]()

        async def asks(number: int) -> None:
            with contextlib.suppress(Refused):
                await processes.servers[number % 4].request(1)
            told.append(processes.servers[0].now - began)

        async with processes.reminded(), asyncio.TaskGroup() as tasks:
            for number in range(12):
                tasks.create_task(asks(number))
        assert sorted(told)[len(told) // 2] < 1.0 and max(told) < 11.0, told

    play(scene)


def test_slots_go_to_workers_by_how_many_wait_there() -> None:
    async def scene() -> None:
        processes = Processes(2, 1, 1.0)
        await processes.run([6, 2], 120.0)
        assert not processes.refused, "six clients of one worker wait no longer than two of another"
        assert max(processes.longest.values()) < 12.0
        assert processes.answered[0] > 2 * processes.answered[1]

    play(scene)


# ---- what one worker knows of the others


def alone() -> tuple[PeerWorkers, list[tuple[object, ...]]]:
    """What the worker w0 knows of the others, and what it tells them."""
    told: list[tuple[object, ...]] = []
    return PeerWorkers("w0", lambda *news: told.append(news)), told


def test_a_worker_that_repeats_that_it_waits_does_not_begin_to() -> None:
    peers, _ = alone()
    assert peers.hear("waits", "w1", 0.0)
    assert not peers.hear("waits", "w1", TELL_SECONDS)
    peers.hear("waits_no_more", "w1", TELL_SECONDS)
    assert peers.hear("waits", "w1", TELL_SECONDS)


def test_another_worker_is_active_while_it_waits_or_was_answered_of_late() -> None:
    peers, _ = alone()
    assert not peers.active(0.0)
    peers.hear("answers", "w1", 10.0)
    assert peers.active(9.9 + NEWS_SECONDS) and not peers.active(10.0 + NEWS_SECONDS)
    peers.hear("waits", "w1", 100.0)
    assert peers.active(100.0 + NEWS_SECONDS) and not peers.active(100.1 + NEWS_SECONDS)


def test_a_new_leg_lets_others_go_first_only_if_they_get_a_slot_from_here() -> None:
    """By the end of a call that is in flight here, or because one was just handed over."""
    peers, told = alone()
    assert not peers.go_first(0.0, calls=1)
    peers.hear("waits", "w1", 0.0)
    assert peers.go_first(0.0, calls=1) and not peers.go_first(0.0, calls=0)
    assert peers.give_away("replica", 1.0, requests=0)
    assert told == [("room", "w1", "replica", 0)]
    assert peers.go_first(0.9 + HANDED_SECONDS, calls=0) and not peers.go_first(1.1 + HANDED_SECONDS, calls=0)


def test_where_nobody_waits_here_every_slot_goes_to_those_who_do() -> None:
    peers, told = alone()
    peers.hear("waits", "w1", 0.0, requests=2)
    peers.hear("waits", "w2", 0.0)
    assert all(peers.give_away("replica", 0.0, requests=0) for _ in range(6))
    assert Counter(news[1] for news in told) == {"w1": 4, "w2": 2}


def test_that_calls_are_answered_is_told_now_and_then() -> None:
    peers, told = alone()
    peers.tell_answers(0.0)
    peers.tell_answers(TELL_SECONDS - 0.1)
    assert len(told) == 1
    peers.tell_answers(TELL_SECONDS - 0.1, at_once=True)
    assert len(told) == 2
    peers.tell_answers(TELL_SECONDS)
    assert len(told) == 2
    peers.tell_answers(2 * TELL_SECONDS)
    assert told == [("answers", "w0", "", 0)] * 3
