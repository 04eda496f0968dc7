"""The ledger's rules, one by one: who goes first, who waits for whom, who is refused and what he is told."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import combinations, count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nproxy.gateway.admission import accounts
from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.ledger import Ledger
from nproxy.gateway.admission.messages import Admitted, Answer, Ask, Leave, Move, Refused, Room
from nproxy.gateway.callers import Rates

BOUNDS = Bounds(inflight=8, queue=100, seconds=10.0)


class Door:
    """A ledger, and tickets that say who they are: `door.ask("a", 2)` gives `a1`, `a2` ... and tells who got in."""

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self.ledger = Ledger(bounds)
        self.now = 0.0
        self.said: list[Answer] = []
        self._numbers = count(1)

    def ask(self, key: str, choices: int = 1, upstream: str = "u", **fields: Any) -> str:
        ticket = f"{key}-{next(self._numbers)}"
        self.take(self.ledger.receive(Ask(ticket, key, upstream, choices, **fields), self.now))
        return ticket

    def leave(self, *tickets: str, tokens: int | None = None) -> list[str]:
        """Give back what they hold; who got in by it."""
        before = len(self.said)
        for ticket in tickets:
            self.take(self.ledger.receive(Leave(ticket, tokens), self.now))
        return [answer.ticket for answer in self.said[before:] if isinstance(answer, Admitted)]

    def take(self, answers: list[Answer]) -> None:
        self.said += answers

    def is_in(self, ticket: str) -> bool:
        return any(isinstance(answer, Admitted) and answer.ticket == ticket for answer in self.said)

    def refusal(self, ticket: str) -> Refused:
        (found,) = [answer for answer in self.said if isinstance(answer, Refused) and answer.ticket == ticket]
        return found


# ---- who goes first


def test_N4_small_ones_do_not_pass_a_wide_one_that_waits() -> None:
    door = Door()
    running = [door.ask("a") for _ in range(4)]
    wide = door.ask("b", 8)
    small = [door.ask("a") for _ in range(4)]
    assert not any(map(door.is_in, small)), "there is room for them, and it is kept"
    assert door.leave(*running) == [wide]
    assert door.leave(wide) == small


def test_N4_small_ones_of_its_own_key_do_not_pass_it_either() -> None:
    door = Door()
    running = door.ask("a", 5)
    wide, small = door.ask("a", 7), door.ask("a")
    assert door.leave(running) == [wide, small]


def test_N4_wide_ones_in_a_row_let_small_ones_of_others_through() -> None:
    door = Door()
    running = door.ask("wide", 8)
    queued = [door.ask("wide", 8) for _ in range(3)]
    small = [door.ask("small") for _ in range(4)]
    assert door.leave(running) == small, "its key has had 8, theirs nothing"
    more = [door.ask("small") for _ in range(10)]
    assert [door.is_in(ticket) for ticket in more] == [True] * 4 + [False] * 6, "until it has had as many"
    assert door.leave(*small) == []
    assert door.leave(*more[:4]) == [queued[0]]
    assert door.leave(queued[0]) == more[4:]


def test_shares_follow_weights() -> None:
    door = Door(replace(BOUNDS, inflight=1))
    last = door.ask("z")
    for _ in range(12):
        door.ask("heavy", weight=3.0)
        door.ask("light", weight=1.0)
    order = ""
    for _ in range(12):
        (last,) = door.leave(last)
        order += last[0]
    assert order.count("h") == 9


class Backlog:
    """Keys that always have something waiting, and a server that ends what it has in any order."""

    def __init__(self, inflight: int, weights: list[float], widths: list[list[int]]) -> None:
        self.door = Door(replace(BOUNDS, inflight=inflight, queue=10_000))
        self.weights, self.widths = weights, widths
        self.running = [self.door.ask("first", inflight)]
        self.got: list[float] = [0.0] * len(weights)
        self.waiting: dict[str, int] = {}
        for key in range(len(weights)):
            for _ in range(17):  # more than one end can let in
                self.come(key)

    def come(self, key: int) -> None:
        widths = self.widths[key]
        width = widths[len(self.waiting) % len(widths)]
        self.waiting[self.door.ask(str(key), width, weight=self.weights[key])] = width

    def step(self, which: int) -> None:
        for ticket in self.door.leave(self.running.pop(which % len(self.running))):
            self.running.append(ticket)
            key = int(ticket.partition("-")[0])
            self.got[key] += self.waiting[ticket] / self.weights[key]
            self.come(key)


@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=2, max_size=4),
    widths=st.lists(st.lists(st.integers(1, 16), min_size=1, max_size=4), min_size=4, max_size=4),
    ends=st.lists(st.integers(0, 15), min_size=20, max_size=80),
)
def test_N4_no_key_is_ahead_by_more_than_a_widest_request_of_each(
    weights: list[float], widths: list[list[int]], ends: list[int]
) -> None:
    """The fairness theorem of start-time fair queueing (Goyal, Vin and Cheng, theorem 1), for every moment."""
    backlog = Backlog(16, weights, widths)
    for which in ends:
        backlog.step(which)
        for f, m in combinations(range(len(weights)), 2):
            bound = max(widths[f]) / weights[f] + max(widths[m]) / weights[m]
            assert abs(backlog.got[f] - backlog.got[m]) <= bound + 1e-9


@given(
    widths=st.lists(st.integers(1, 8), min_size=1, max_size=30),
    ends=st.lists(st.integers(0, 30), min_size=60, max_size=60),
    keys=st.integers(1, 3),
)
def test_N4_a_wide_one_is_passed_by_no_more_than_the_others_fair_shares(
    widths: list[int], ends: list[int], keys: int
) -> None:
    """However many small ones keep coming: a key passes it by its own width over the weights, and one request more."""
    door = Door()
    running = [door.ask("0", 1) for _ in range(8)]
    wide = door.ask("wide", 8)
    passed = 0
    for number, which in enumerate(ends):
        door.ask(str(number % keys), widths[number % len(widths)])
        before = len(door.said)
        running += door.leave(running.pop(which % len(running)))
        if wide in running:
            break
        passed += len(door.said) - before
        if not running:
            break
    assert door.is_in(wide)
    assert passed <= keys, "with its tag it is first, but for who came in the same moment of virtual time"


def test_who_comes_late_has_saved_nothing() -> None:
    door = Door(replace(BOUNDS, inflight=1))
    last = door.ask("early")
    for _ in range(12):
        door.ask("early")
    for _ in range(6):
        (last,) = door.leave(last)
    for _ in range(6):
        door.ask("late")
    order = ""
    for _ in range(6):
        (last,) = door.leave(last)
        order += last[0]
    assert order.count("l") == 3


def test_what_a_key_has_at_several_upstreams_adds_up() -> None:
    door = Door(replace(BOUNDS, inflight=12))
    everything = door.ask("z", 12)
    door.ask("a", 4, "u")
    door.ask("a", 4, "v")
    running = door.ask("b", 4, "u")
    assert len(door.leave(everything)) == 3
    again, other = door.ask("a", 4), door.ask("b", 4)
    assert door.leave(running) == [other]
    assert door.leave(other) == [again]


def test_nobody_is_ahead_when_all_have_left() -> None:
    door = Door()
    door.leave(door.ask("a", 4), door.ask("b", 1))
    running = door.ask("z", 8)
    first, _ = door.ask("a", 8), door.ask("c", 8)
    assert door.leave(running) == [first]


def test_who_was_held_up_elsewhere_turns_no_time_back() -> None:
    door = Door(replace(BOUNDS, upstreams={"u": 4}))
    elsewhere, held_up = door.ask("z", 4, "u"), door.ask("a", 4, "u")
    for key in ("y", "y", "x"):
        door.leave(door.ask(key, 4, "v"))
    running = door.ask("x", 4, "v")
    assert door.leave(elsewhere) == [held_up]
    first, _ = door.ask("y", 4, "v"), door.ask("late", 4, "v")
    assert door.leave(running) == [first]


def test_who_has_had_much_stays_behind_while_any_of_it_is_in_flight() -> None:
    door = Door()
    door.ask("a", 4)
    door.leave(door.ask("b", 4))
    running = door.ask("c", 4)
    again, new = door.ask("a", 4), door.ask("d", 4)
    assert door.leave(running) == [new]
    assert door.leave(new) == [again]


def test_who_leaves_the_queue_leaves_no_trace() -> None:
    door = Door()
    running = door.ask("z", 8)
    gone = [door.ask("a", 8) for _ in range(5)]
    door.ask("b", 8)
    door.leave(*gone)
    mine, theirs = door.ask("a", 8), door.ask("b", 8)
    first = door.leave(running)
    second = door.leave(*first)
    assert [*first, *second] == ["b-7", mine], theirs


def test_who_leaves_changes_nothing_for_who_stands_before_him() -> None:
    door = Door(replace(BOUNDS, upstreams={"u": 4}))
    running = door.ask("z", 4, "u")
    first, behind = door.ask("a", 4, "u"), door.ask("a", 1, "u")
    door.ask("a", 2, "v")
    door.ask("b", 4, "u")
    door.leave(behind)
    assert door.leave(running) == [first]


# ---- who waits for whom


def test_one_that_waits_for_its_own_keys_limit_stops_only_its_key() -> None:
    door = Door()
    own = door.ask("a", 2, most=2)
    second = door.ask("a", 2, most=2)
    third = door.ask("a", 1, "v", most=2)
    before, other = door.ask("b", 3), door.ask("b", 3)
    assert door.is_in(before)
    assert door.is_in(other), "though it comes behind, its key having had more"
    assert not door.is_in(second)
    assert not door.is_in(third), "it would pass one of its own key that wants the same"
    assert door.leave(own) == [second]
    assert door.leave(second) == [third]


def test_one_that_waits_for_its_upstream_stops_only_that() -> None:
    door = Door(replace(BOUNDS, upstreams={"u": 4}))
    running = door.ask("z", 3, "u")
    wide, small = door.ask("a", 2, "u"), door.ask("b", 1, "u")
    elsewhere = door.ask("a", 1, "v")
    assert door.is_in(elsewhere)
    assert not door.is_in(small), "it wants what the wide one waits for"
    assert door.leave(running) == [wide, small]


def test_one_that_waits_for_its_upstream_has_its_keys_permits_spoken_for() -> None:
    door = Door(replace(BOUNDS, upstreams={"u": 4}))
    running = door.ask("b", 4, "u")
    waits = door.ask("a", 3, "u", most=4)
    first, second = door.ask("a", 1, "v", most=4), door.ask("a", 1, "v", most=4)
    assert door.is_in(first)
    assert not door.is_in(second), "else there would be none left of the key when the upstream has room"
    assert door.leave(running) == [waits]


def test_narrow_ones_that_keep_coming_do_not_starve_one_between_two_limits() -> None:
    """Its key's small requests elsewhere, and other keys' small ones at the same place, never end."""
    door = Door(Bounds(inflight=100, queue=1000, seconds=10, upstreams={"u": 4}))
    theirs = deque(door.ask("b", 1, "u") for _ in range(4))
    own = deque(door.ask("a", 1, "v", most=4) for _ in range(4))
    wide = door.ask("a", 4, "u", most=4)
    for _ in range(8):
        door.ask("b", 1, "u")
        door.ask("a", 1, "v", most=4)
        for running in (own, theirs):
            if running:
                got = door.leave(running.popleft())
                theirs += [ticket for ticket in got if ticket[0] == "b"]
                own += [ticket for ticket in got if ticket[0] == "a"]
    assert door.is_in(wide)


# ---- who is refused


@pytest.mark.parametrize(
    ("bounds", "fields", "limit"),
    [
        (BOUNDS, {}, 8),
        (BOUNDS, {"most": 5}, 5),
        (replace(BOUNDS, upstreams={"u": 6}), {}, 6),
        (BOUNDS, {"rates": Rates(choices=7)}, 7),
    ],
    ids=["in all", "key", "upstream", "rate"],
)
def test_N3_wider_than_a_limit_never_waits(bounds: Bounds, fields: dict[str, Any], limit: int) -> None:
    door = Door(bounds)
    refused = door.refusal(door.ask("a", 9, **fields))
    assert (refused.reason, refused.limit) == ("too_wide", limit)
    assert door.is_in(door.ask("a", limit, **fields))


def test_N5_a_full_queue_refuses_at_once() -> None:
    door = Door(replace(BOUNDS, queue=3))
    door.ask("a", 8)
    door.ask("a", 2)
    refused = door.refusal(door.ask("a", 2))
    assert (refused.reason, refused.full) == ("queue_full", False), "one choice would still find its place"
    door.ask("a", 1)
    assert door.refusal(door.ask("a", 1)).full


def test_N5_waiting_too_long() -> None:
    door = Door()
    running = door.ask("a", 8)
    door.now = 3.0
    late = door.ask("a", 2)
    assert door.ledger.deadline() == 13.0
    door.take(door.ledger.tick(12.9))
    assert door.ledger.waiting == 2
    door.take(door.ledger.tick(13.0))
    assert door.refusal(late).reason == "timeout"
    assert (door.ledger.waiting, door.ledger.deadline()) == (0, None)
    assert door.leave(late, running) == []
    assert door.ledger.taken == 0


def test_what_was_kept_for_one_who_has_waited_too_long_is_given_away() -> None:
    door = Door()
    door.ask("a", 6)
    wide = door.ask("b", 8)
    door.now = 5.0
    small = door.ask("c", 2)
    assert not door.is_in(small)
    door.take(door.ledger.tick(10.0))
    assert door.refusal(wide).reason == "timeout"
    assert door.is_in(small)


def test_the_next_deadline_is_that_of_who_has_waited_longest_for_whatever() -> None:
    door = Door(replace(BOUNDS, upstreams={"v": 2}))
    mover = door.ask("a", 2)
    door.ask("b", 2, "v")
    door.now = 3.0
    waits = door.ask("c", 2, "v")
    door.take(door.ledger.receive(Move(mover, "v"), 4.0))
    assert door.ledger.deadline() == 13.0
    door.leave(waits)
    assert door.ledger.deadline() == 14.0
    door.now = 5.0
    door.ask("c", 2, "v")
    assert door.ledger.deadline() == 14.0


def test_no_waiting_where_the_queue_has_no_seconds() -> None:
    door = Door(replace(BOUNDS, seconds=0))
    door.ask("a", 8)
    assert door.refusal(door.ask("b")).full


def test_a_key_that_fills_the_queue_makes_room_for_the_others() -> None:
    door = Door(replace(BOUNDS, queue=4))
    running = door.ask("a", 8)
    queued = [door.ask("a") for _ in range(4)]
    other = door.ask("b", 2)
    assert [door.refusal(ticket).reason for ticket in queued[2:]] == ["queue_full", "queue_full"], "its youngest"
    late = door.ask("b", 1)
    assert door.refusal(late).reason == "queue_full", "b has its half"
    assert door.leave(running) == [other, *queued[:2]]


def test_who_makes_room_is_found_by_weight() -> None:
    door = Door(replace(BOUNDS, queue=7))
    door.ask("z", 8)
    door.ask("heavy", 4, weight=4.0)
    longest = [door.ask("a") for _ in range(3)]
    door.ask("b")
    assert door.refusal(longest[2]).reason == "queue_full"
    assert door.refusal(door.ask("c", 3)).reason == "queue_full"
    assert door.ledger.waiting == 7


def test_nobody_makes_room_for_a_key_with_as_much_for_its_weight() -> None:
    door = Door(replace(BOUNDS, queue=4))
    door.ask("z", 8)
    for _ in range(4):
        door.ask("heavy", weight=4.0)
    assert door.refusal(door.ask("b")).reason == "queue_full"


def test_nobody_makes_room_where_it_would_not_be_enough() -> None:
    door = Door(replace(BOUNDS, queue=4))
    door.ask("z", 8)
    queued = [door.ask("a") for _ in range(4)]
    assert door.refusal(door.ask("b", 3)).reason == "queue_full"
    assert not any(answer.ticket in queued for answer in door.said if isinstance(answer, Refused))


@pytest.mark.parametrize(("weight", "full"), [(1.0, True), (2.0, False)])
def test_full_is_said_where_a_narrower_one_would_make_no_room_either(weight: float, full: bool) -> None:
    door = Door(replace(BOUNDS, queue=1))
    door.ask("a", 8)
    door.ask("a", 1)
    assert door.refusal(door.ask("b", 2, weight=weight)).full == full


def test_full_is_not_said_where_a_narrower_one_would_make_room() -> None:
    door = Door(replace(BOUNDS, queue=4))
    door.ask("a", 8)
    door.ask("a", 4)
    assert not door.refusal(door.ask("b", 4)).full
    assert door.ledger.waiting == 4
    door.ask("b", 1)
    assert door.ledger.waiting == 1


def test_full_is_said_to_a_key_at_its_own_limit() -> None:
    door = Door(replace(BOUNDS, queue=1))
    door.ask("a", 2, most=2)
    door.ask("a", 1, most=2)
    assert door.refusal(door.ask("a", 1, most=2)).full


def test_room_is_told_once_to_whom_full_was_said() -> None:
    door = Door(replace(BOUNDS, queue=1))
    door.leave(door.ask("a"))
    running = door.ask("a", 8)
    waits = door.ask("a")
    assert door.refusal(door.ask("a")).full
    assert not door.refusal(door.ask("b", waits=False)).full
    assert Room() not in door.said
    door.leave(waits)
    assert door.said.count(Room()) == 1
    door.leave(running)
    assert door.said.count(Room()) == 1


def test_room_is_told_when_one_who_waited_has_given_up() -> None:
    door = Door(replace(BOUNDS, queue=1))
    door.ask("a", 8)
    door.ask("a")
    door.now = 1.0
    assert door.refusal(door.ask("a")).full
    door.take(door.ledger.tick(10.0))
    assert door.said.count(Room()) == 1


def test_room_is_told_when_the_limits_change() -> None:
    door = Door(replace(BOUNDS, queue=0))
    door.ask("a", 8)
    assert door.refusal(door.ask("a")).full
    door.take(door.ledger.reconfigure(BOUNDS, 0.0))
    assert door.said.count(Room()) == 1


def test_a_queue_full_for_one_upstream_is_not_full_for_all() -> None:
    door = Door(Bounds(inflight=8, queue=1, seconds=10, upstreams={"u": 2}))
    door.ask("a", 2, "u")
    door.ask("a", 1, "u")
    assert not door.refusal(door.ask("a", 1, "u")).full
    assert door.is_in(door.ask("a", 1, "v"))


def test_who_may_not_wait_is_refused_and_others_are_served() -> None:
    door = Door()
    running = door.ask("a", 8)
    before = door.ask("a", 1)
    assert door.refusal(door.ask("a", 1, waits=False)).reason == "draining"
    assert door.leave(running) == [before]
    assert door.is_in(door.ask("a", 1, waits=False))


def test_one_who_may_not_wait_is_not_told_that_the_queue_is_full() -> None:
    door = Door(replace(BOUNDS, queue=1))
    door.ask("a", 8)
    door.ask("a")
    refused = door.refusal(door.ask("a", waits=False))
    assert (refused.reason, refused.full) == ("draining", False)


def test_retry_after_is_what_the_queue_takes_at_the_pace_of_late() -> None:
    door = Door(replace(BOUNDS, inflight=2, queue=20))
    running = [door.ask("a"), door.ask("a")]
    for _ in range(20):
        door.ask("a")
    assert door.refusal(door.ask("a")).retry_after == 10.0, "nothing has come back yet: the longest wait"
    for _ in range(40):
        door.now += 0.5
        got = door.leave(running.pop(0))
        running += got
        door.ask("a")
    assert door.refusal(door.ask("a", 2)).retry_after == pytest.approx(22 / 2, rel=0.05)
    door.now += 1000
    assert door.refusal(door.ask("a")).retry_after == 60.0


# ---- rates


def test_what_is_turned_away_at_the_door_is_not_counted() -> None:
    rates = Rates(requests=10, choices=100, tokens=1000)
    door = Door(replace(BOUNDS, queue=0))
    door.ask("a", 8, rates=rates, tokens=100)
    refused = door.refusal(door.ask("a", 8, rates=rates, tokens=100))
    assert {level.what: level.behind for level in refused.levels} == pytest.approx(
        {"requests": 6.0, "choices": 4.8, "tokens": 6.0}
    )


def test_one_that_leaves_the_queue_has_asked_and_nothing_else() -> None:
    rates = Rates(requests=10, choices=100, tokens=1000)
    door = Door()
    door.ask("b", 8)
    door.leave(door.ask("a", 8, rates=rates, tokens=100))
    (account,) = [account for key, account in door.ledger._accounts.by_key.items() if key == "a"]
    assert [account.meters.behind(kind, 0.0) for kind in ("requests", "choices", "tokens")] == [6.0, 0.0, 0.0]


def test_tokens_are_settled_by_what_was_spent() -> None:
    rates = Rates(tokens=1000)
    door = Door()
    door.leave(door.ask("a", rates=rates, tokens=500), tokens=20)
    door.leave(door.ask("a", rates=rates, tokens=500))
    assert door.is_in(door.ask("a", rates=rates, tokens=480)), "20 and a guess that stands"
    door.leave("a-3", tokens=2480)
    refused = door.refusal(door.ask("a", rates=rates, tokens=0))
    assert refused.reason == "tokens"
    assert refused.retry_after == pytest.approx(120.0)


@pytest.mark.parametrize(("rates", "reason"), [(Rates(requests=1), "requests"), (Rates(choices=1), "choices")])
def test_a_rate_refuses_before_anything_waits(rates: Rates, reason: str) -> None:
    door = Door()
    door.ask("a", rates=rates)
    refused = door.refusal(door.ask("a", rates=rates))
    assert refused.reason == reason
    assert refused.retry_after == pytest.approx(60.0)
    assert door.is_in(door.ask("b", rates=rates)), "it is the key's, not everybody's"


# ---- moving, other limits, what is remembered


def test_a_request_that_moves_takes_its_permits_along() -> None:
    door = Door(replace(BOUNDS, upstreams={"u": 4, "v": 4}))
    mover, blocks = door.ask("a", 3, "u"), door.ask("b", 3, "v")
    next_at_u = door.ask("c", 2, "u")
    door.take(door.ledger.receive(Move(mover, "v"), 0.0))
    assert door.is_in(next_at_u), "its place is free while it waits for the other"
    before = len(door.said)
    assert door.leave(blocks) == [mover]
    assert door.ledger.taken == 5
    assert len(door.said) == before + 1
    assert door.refusal(door.ask("d", 4, "v", waits=False)).reason == "draining", "it has them there"


def test_who_leaves_while_he_moves_is_nowhere() -> None:
    door = Door(replace(BOUNDS, upstreams={"u": 2, "v": 2}))
    mover, blocks = door.ask("a", 2, "u"), door.ask("b", 2, "v")
    door.take(door.ledger.receive(Move(mover, "v"), 0.0))
    door.leave(mover)
    assert door.leave(blocks) == []
    assert door.ledger.receive(Move(mover, "v"), 0.0) == []
    for upstream in ("u", "v"):
        assert [door.is_in(door.ask("c", 2, upstream)) for _ in range(2)] == [True, False]


def test_who_moves_is_passed_by_nobody_for_the_same_upstream() -> None:
    door = Door(replace(BOUNDS, upstreams={"v": 4}))
    first, second, blocks = door.ask("a", 3), door.ask("a", 1), door.ask("b", 3, "v")
    for mover in (first, second):
        door.take(door.ledger.receive(Move(mover, "v"), 0.0))
    behind = door.ask("c", 1, "v")
    assert not door.is_in(behind) and len(door.said) == 3, "there is room for one, and it is kept"
    assert door.leave(blocks) == [first, second]
    assert door.leave(first) == [behind]


def test_a_move_that_finds_no_room_in_time() -> None:
    door = Door(replace(BOUNDS, upstreams={"u": 4, "v": 2}))
    mover = door.ask("a", 2, "u")
    door.ask("b", 2, "v")
    door.take(door.ledger.receive(Move(mover, "v"), 5.0))
    assert door.ledger.deadline() == 15.0
    door.take(door.ledger.tick(15.0))
    assert door.refusal(mover).reason == "timeout"
    assert door.ledger.taken == 4, "it is in flight still, wherever"
    wide = door.ask("a", 3, "u")
    door.take(door.ledger.receive(Move(wide, "v"), 5.0))
    assert door.refusal(wide).reason == "too_wide"
    door.leave(mover, wide)
    assert door.ledger.taken == 2


def test_other_limits_hold_for_those_who_wait() -> None:
    door = Door()
    door.ask("a", 8)
    wide, narrow = door.ask("b", 6), door.ask("b", 2)
    door.take(door.ledger.reconfigure(replace(BOUNDS, inflight=5), 1.0))
    assert door.refusal(wide).reason == "too_wide"
    door.take(door.ledger.reconfigure(replace(BOUNDS, inflight=10), 2.0))
    assert door.is_in(narrow)


def test_a_lost_workers_requests_have_all_left() -> None:
    door = Door()
    door.ask("w1", 5)
    door.ask("w1", 5)
    theirs = door.ask("w10", 8)
    door.take(door.ledger.lost("w1-", 0.0))
    assert door.is_in(theirs), "and w10 is another"
    assert (door.ledger.taken, door.ledger.waiting) == (8, 0)


def test_keys_are_forgotten_when_nothing_is_known_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "LEAST_SWEEP", 20)
    monkeypatch.setattr(accounts, "MOST_KEYS", 80)
    door = Door()
    for number in range(200):
        door.leave(door.ask(f"k{number}"))
    assert door.ledger.keys <= 20
    for number in range(200):
        door.leave(door.ask(f"r{number}", rates=Rates(requests=1)))
    assert 60 < door.ledger.keys <= 80, "each has spent its minute; the oldest had to go"
    assert door.refusal(door.ask("r199", rates=Rates(requests=1))).reason == "requests"
    door.now = 61.0
    for number in range(100):
        door.leave(door.ask(f"s{number}"))
    assert door.ledger.keys <= 40


@pytest.mark.parametrize(("most", "known"), [(1000, {"running", "ahead", "waits"}), (8, {"running", "waits"})])
def test_keys_of_which_something_is_known_stay(monkeypatch: pytest.MonkeyPatch, most: int, known: set[str]) -> None:
    monkeypatch.setattr(accounts, "LEAST_SWEEP", 4)
    monkeypatch.setattr(accounts, "MOST_KEYS", most)
    door = Door()
    door.ask("running", 4)
    door.leave(door.ask("ahead", 2))
    door.ask("others", 4)
    door.ask("waits", 8)
    rates = Rates(requests=1) if most == 8 else Rates()
    for number in range(20):
        door.leave(door.ask(f"k{number}", rates=rates))
    assert known <= set(door.ledger._accounts.by_key)
    assert len(door.ledger._accounts.by_key) <= 8
