"""The ledger under any sequence of messages: over no limit, nobody forgotten, nothing left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from copy import deepcopy
from dataclasses import replace
from math import inf

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from nproxy.gateway.admission.accounts import Accounts
from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.claims import Claim
from nproxy.gateway.admission.ledger import Ledger
from nproxy.gateway.admission.messages import (
    Admitted,
    Answer,
    Ask,
    Leave,
    Move,
    Refused,
    Returned,
    RoomAgain,
    answer_of,
    message_of,
    to_bytes,
)
from nproxy.gateway.admission.queue import FairQueue


class PlainQueue(FairQueue):
    """Walks through the heads of all lanes, even if nothing can come of most."""

    def in_order(self, stopped: Container[str]) -> Iterator[Claim]:
        seen: set[Claim] = set()
        while True:
            lanes = [lane for account in self._accounts.values() for lane in account.lanes.values()]
            heads = [lane[0] for lane in lanes if lane[0] not in seen]
            if not heads:
                return
            head = min(heads, key=lambda claim: (claim.start, claim.number))
            seen.add(head)
            yield head


class PlainLedger(Ledger):
    """One with a plain queue."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self._queue = PlainQueue()
        self._accounts = Accounts(self._queue.forgets)


KEYS = {"a": 12, "b": 12, "c": 5}
UPSTREAMS = {"u": 10, "v": 6}
BOUNDS = Bounds(inflight=16, queue=20, seconds=10.0, upstreams=UPSTREAMS)


class Requests(RuleBasedStateMachine):
    """What a ledger says of requests is kept in a second, simpler book, and the two are compared."""

    first_bounds = BOUNDS
    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.bounds = self.first_bounds
        self.ledger = Ledger(self.bounds)
        self.plain = PlainLedger(self.bounds)
        self.now = 100.0
        self.number = 0
        self.waiting: dict[str, Ask] = {}
        self.since: dict[str, float] = {}
        self.inflight: dict[str, Ask] = {}
        self.placed: dict[str, str | None] = {}
        self.moving: dict[str, str] = {}

    def take(self, answers: list[Answer], plain: list[Answer]) -> None:
        self.admitted = False
        assert answers == plain, "no lane is passed over that had its turn"
        for answer in answers:
            assert answer_of(to_bytes(answer)) == answer
            match answer:
                case Admitted(ticket=ticket) if ticket in self.moving:
                    self.placed[ticket] = self.moving.pop(ticket)
                case Admitted(ticket=ticket):
                    self.inflight[ticket] = ask = self.waiting.pop(ticket)
                    self.placed[ticket] = ask.upstream
                    self.admitted = True
                case Refused(ticket=ticket) if ticket in self.inflight:
                    self.moving.pop(ticket, None)
                    self.placed[ticket] = None
                case Refused(ticket=ticket):
                    del self.waiting[ticket]
                    assert answer.reason == "too_wide" or 1 <= answer.retry_after <= 60
                case RoomAgain() | Returned():
                    pass
        assert not self.admitted or self.taken()[0] <= self.bounds.inflight

    def send(self, message: Ask | Move | Leave) -> None:
        assert message_of(to_bytes(message)) == message
        self.take(self.ledger.receive(message, self.now), self.plain.receive(message, self.now))

    def send_from_beside(self, ask: Ask) -> None:
        """At once those come in whom `receive` would let in, and nobody else; the others leave no trace."""
        twin = deepcopy(self.ledger)
        said = twin.receive(ask, self.now)
        let_in = self.ledger.at_once(ask, self.now)
        assert self.plain.at_once(ask, self.now) == let_in
        if let_in is not None:
            self.take(said, said)
            assert said == [Admitted(ask.ticket, let_in)]
            assert (self.ledger._queue._virtual, self.ledger._reserved) == (twin._queue._virtual, twin._reserved)
        else:
            assert said != [Admitted(ask.ticket)] or self.waiting.keys() - {ask.ticket} or self.moving
            self.send(ask)

    @rule(
        target=tickets,
        key=st.sampled_from(sorted(KEYS)),
        upstream=st.sampled_from(["u", "v", "unbounded"]),
        choices=st.integers(1, 17),
        weight=st.sampled_from([0.5, 1.0, 3.0]),
        waits=st.sampled_from([True, True, True, False]),
        worker=st.sampled_from(["x", "y"]),
        beside=st.booleans(),
    )
    def ask(self, key: str, upstream: str, choices: int, weight: float, waits: bool, worker: str, beside: bool) -> str:
        """beside: from the ledger's own process, which may let it in without an answer."""
        self.number += 1
        ticket = f"{worker}-{self.number}"
        self.waiting[ticket] = ask = Ask(ticket, key, upstream, choices, weight=weight, most=KEYS[key], waits=waits)
        self.since[ticket] = self.now
        waited, before = set(self.waiting), set(self.inflight)
        if beside:
            self.send_from_beside(ask)
        else:
            self.send(ask)
        limit = min(self.bounds.inflight, KEYS[key], UPSTREAMS.get(upstream, 99))
        assert choices <= limit or ticket not in self.waiting, "what would never fit does not wait"
        turned_away = {*waited, ticket} - self.waiting.keys() - self.inflight.keys()
        others_came_in = set(self.inflight) - before - {ticket}
        displaced = {other.key for other in self.waiting.values() if other.upstream == upstream and other.key != key}
        assert turned_away or {self.inflight[other].key for other in others_came_in} <= displaced, (
            "somebody's coming makes room where somebody waits no more, or is no longer the first for an upstream"
        )
        return ticket

    @rule(ticket=consumes(tickets), tokens=st.sampled_from([None, 0, 5]), beside=st.booleans())
    def leave(self, ticket: str, tokens: int | None, beside: bool) -> None:
        """beside: from the ledger's own process, for which it may do without a message."""
        self.forget(ticket)
        if beside:
            self.leave_from_beside(Leave(ticket, tokens))
        else:
            self.send(Leave(ticket, tokens))

    def leave_from_beside(self, message: Leave) -> None:
        """At once those leave whose leaving concerns no others; the rest have left no trace then."""
        twin = deepcopy(self.ledger)
        said = twin.receive(message, self.now)
        left = self.ledger.leave_at_once(message.ticket, message.tokens, self.now)
        assert self.plain.leave_at_once(message.ticket, message.tokens, self.now) == left
        if left:
            assert said == []
            for ledger in (self.ledger, self.plain):
                assert (ledger._reserved, ledger._freed, ledger.taken) == (twin._reserved, twin._freed, twin.taken)
            assert self.ledger._queue._virtual == twin._queue._virtual
        else:
            self.send(message)

    def forget(self, ticket: str) -> None:
        for book in (self.waiting, self.inflight, self.placed, self.moving):
            book.pop(ticket, None)

    @rule(ticket=tickets, goal=st.sampled_from(["u", "v", "unbounded"]))
    def move(self, ticket: str, goal: str) -> None:
        if ticket in self.inflight and ticket not in self.moving:
            self.placed[ticket] = None
            self.moving[ticket] = goal
            self.since[ticket] = self.now
            self.send(Move(ticket, goal))

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.ledger.tick(self.now), self.plain.tick(self.now))
        late = [
            ticket for ticket in (*self.waiting, *self.moving) if self.now - self.since[ticket] >= self.bounds.seconds
        ]
        assert late == []

    @rule(worker=st.sampled_from(["x", "y"]))
    def a_worker_dies(self, worker: str) -> None:
        for ticket in [ticket for ticket in (*self.waiting, *self.inflight) if ticket.startswith(worker)]:
            self.forget(ticket)
        self.take(self.ledger.lost(f"{worker}-", self.now), self.plain.lost(f"{worker}-", self.now))

    @rule(inflight=st.integers(12, 16))
    def other_limits(self, inflight: int) -> None:
        self.bounds = replace(self.first_bounds, inflight=inflight)
        self.take(*(each.reconfigure(self.bounds, self.now) for each in (self.ledger, self.plain)))

    def taken(self) -> tuple[int, Counter[str], Counter[str]]:
        keys, upstreams = Counter[str](), Counter[str]()
        for ticket, ask in self.inflight.items():
            keys[ask.key] += ask.choices
            upstreams[self.placed[ticket] or ""] += ask.choices
        return keys.total(), keys, upstreams

    @invariant()
    def nothing_is_over_its_limit(self) -> None:
        total, keys, upstreams = self.taken()
        assert total == self.ledger.taken
        assert all(count <= KEYS[key] for key, count in keys.items())
        assert all(count <= UPSTREAMS.get(name, inf) for name, count in upstreams.items() if name)
        assert sum(ask.choices for ask in self.waiting.values()) == self.ledger.waiting <= self.bounds.queue

    @invariant()
    def somebody_is_let_in_where_nobody_is_in_the_way(self) -> None:
        """Of those who wait, one with room in all its three limits is there only behind one that shares a limit."""
        total, keys, upstreams = self.taken()
        goals = set(self.moving.values())

        def lacks(ask: Ask) -> set[str]:
            room = {
                "all": self.bounds.inflight - total,
                f"key {ask.key}": KEYS[ask.key] - keys[ask.key],
                f"upstream {ask.upstream}": UPSTREAMS.get(ask.upstream, 99) - upstreams[ask.upstream],
            }
            return {limit for limit, free in room.items() if ask.choices > free}

        for ask in self.waiting.values():
            if lacks(ask) or ask.upstream in goals:
                continue
            others = [other for other in self.waiting.values() if other is not ask]
            blocked = [other for other in others if lacks(other)]
            shared = [
                other
                for other in blocked
                if "all" in lacks(other) or other.key == ask.key or other.upstream == ask.upstream
            ]
            assert shared, "it waits for no reason"

    @precondition(lambda self: not self.inflight)
    @invariant()
    def nobody_waits_alone(self) -> None:
        assert not self.waiting

    def teardown(self) -> None:
        for ticket in (*self.waiting, *self.inflight):
            self.forget(ticket)
            self.send(Leave(ticket))
        assert (self.ledger.taken, self.ledger.waiting, self.ledger.deadline()) == (0, 0, None)
        assert not self.waiting, "nobody was let in any more"
        assert not self.inflight
        assert not any(self.ledger._upstreams.values())
        assert not self.ledger._queue._accounts
        assert not self.ledger._queue._heads
        assert not any(account.inflight or account.waiting for account in self.ledger._accounts.by_key.values())


class FewPlaces(Requests):
    """So few may wait that who comes often takes another one's place."""

    first_bounds = replace(BOUNDS, queue=4)


class NoPlaces(Requests):
    """Nobody may wait."""

    first_bounds = replace(BOUNDS, seconds=0)


for machine in (Requests, FewPlaces, NoPlaces):
    machine.TestCase.settings = settings(
        max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
TestRequests = Requests.TestCase
TestFewPlaces = FewPlaces.TestCase
TestNoPlaces = NoPlaces.TestCase
