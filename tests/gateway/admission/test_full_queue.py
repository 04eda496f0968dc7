"""N3, N5: who is refused, who makes room for whom, and what they are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.messages import Move, Refused, RoomAgain
from nproxy.gateway.callers import Rates
from tests.gateway.admission.door import BOUNDS, Door


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
    assert RoomAgain() not in door.said
    door.leave(waits)
    assert door.said.count(RoomAgain()) == 1
    door.leave(running)
    assert door.said.count(RoomAgain()) == 1


def test_room_is_told_when_one_who_waited_has_given_up() -> None:
    door = Door(replace(BOUNDS, queue=1))
    door.ask("a", 8)
    door.ask("a")
    door.now = 1.0
    assert door.refusal(door.ask("a")).full
    door.take(door.ledger.tick(10.0))
    assert door.said.count(RoomAgain()) == 1


def test_room_is_told_when_the_limits_change() -> None:
    door = Door(replace(BOUNDS, queue=0))
    door.ask("a", 8)
    assert door.refusal(door.ask("a")).full
    door.take(door.ledger.reconfigure(BOUNDS, 0.0))
    assert door.said.count(RoomAgain()) == 1


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


@pytest.mark.parametrize("bounds", [replace(BOUNDS, seconds=0), replace(BOUNDS, queue=0)], ids=["no time", "no places"])
def test_who_asks_for_too_much_keeps_nobody_out(bounds: Bounds) -> None:
    """Where nobody can wait: the next one of its key gets what is free."""
    door = Door(bounds)
    door.ask("a", 6)
    refused = door.refusal(door.ask("b", 4))
    assert (refused.reason, refused.full) == ("queue_full", False)
    assert door.is_in(door.ask("b", 1)) and door.is_in(door.ask("c", 1))
    assert door.refusal(door.ask("b", 1)).full


def test_who_loses_his_place_is_in_nobodys_way_any_more() -> None:
    door = Door(replace(BOUNDS, queue=4))
    door.ask("a", 6)
    wide = door.ask("b", 4)
    narrow = door.ask("c", 1)
    assert (door.refusal(wide).reason, door.refusal(wide).full) == ("queue_full", False)
    assert door.is_in(narrow) and door.ledger.waiting == 0


def test_there_is_room_once_one_has_lost_his_place_and_others_are_let_in_by_it() -> None:
    door = Door(replace(BOUNDS, queue=4))
    door.ask("a", 6)
    wide = door.ask("b", 4)
    assert door.refusal(door.ask("b", 1)).full
    assert RoomAgain() not in door.said
    assert door.is_in(door.ask("c", 1)) and door.refusal(wide)
    assert door.said[-1] == RoomAgain()
    assert door.is_in(door.ask("b", 1))


def test_there_is_room_where_one_takes_less_of_it_than_he_who_has_lost_his_place() -> None:
    door = Door(replace(BOUNDS, queue=4))
    door.ask("a", 8)
    door.ask("b", 4)
    assert door.refusal(door.ask("b", 1)).full
    door.ask("c", 1)
    assert door.ledger.waiting == 1 and door.said[-1] == RoomAgain()


def test_there_is_none_where_he_takes_as_much() -> None:
    door = Door(replace(BOUNDS, queue=4))
    door.ask("a", 8)
    door.ask("b", 2)
    lost = door.ask("b", 2)
    assert door.refusal(door.ask("b", 1)).full
    door.ask("c", 2)
    assert door.refusal(lost) and door.ledger.waiting == 4 and RoomAgain() not in door.said
