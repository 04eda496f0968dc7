"""N4: who goes first, and who waits for whom."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nproxy.gateway.admission.bounds import Bounds
from tests.gateway.admission.door import BOUNDS, Door

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


def test_one_that_waits_for_its_own_keys_limit_stops_its_key_also_behind_others_at_a_full_upstream() -> None:
    door = Door(replace(BOUNDS, upstreams={"u": 2}))
    door.ask("z", 2, "u")
    own = door.ask("a", 2, "v", most=3)
    door.ask("b", 1, "u")
    door.ask("a", 2, "u", most=3)
    elsewhere = door.ask("a", 1, "v", most=3)
    assert not door.is_in(elsewhere), "it would pass one of its own key that wants the same"
    assert door.leave(own) == [elsewhere]


@pytest.mark.parametrize("most", [None, 2], ids=["for their upstream", "for their own limits"])
def test_a_walk_does_not_grow_with_those_that_only_wait(most: int | None) -> None:
    door = Door(Bounds(inflight=1000, queue=1000, seconds=10, upstreams={"u": 5} if most is None else {}))
    for key in range(100):
        for _ in range(2):
            door.ask(f"k{key}", 2, "u", most=most)
    assert door.ledger.waiting >= 200
    walked = list(door.ledger._queue.in_order({"u"} if most is None else set()))
    assert not walked
    assert door.is_in(door.ask("other", 1, "v"))


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
