"""What the ledger knows of requests on their way: rates, moves, other limits, keys remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nproxy.gateway.admission import accounts
from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.messages import Admitted, Move
from nproxy.gateway.callers import Rates
from tests.gateway.admission.door import BOUNDS, Door

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


def test_a_key_has_the_limit_of_its_last_request() -> None:
    """After a reload, what waits under the old limit holds up nobody."""
    door = Door()
    door.ask("a", 2, most=2)
    waits = door.ask("a", 2, most=2)
    assert not door.is_in(waits)
    further = door.ask("a", 2, most=6)
    assert door.is_in(waits) and door.is_in(further)


def test_one_that_is_wider_than_a_new_limit_has_its_turn_alone() -> None:
    door = Door()
    first = door.ask("a", 4, most=4)
    wide = door.ask("a", 4, most=4)
    narrow = door.ask("a", 1, most=2)
    assert not door.is_in(wide) and not door.is_in(narrow)
    door.leave(first)
    assert door.is_in(wide) and not door.is_in(narrow)
    door.leave(wide)
    assert door.is_in(narrow)


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


def test_an_upstream_without_a_limit_of_its_own_has_room_for_all_that_move() -> None:
    door = Door(replace(BOUNDS, upstreams={"u": 4}))
    mover = door.ask("a", 3, "u")
    door.take(door.ledger.receive(Move(mover, "v"), 0.0))
    assert [type(answer) for answer in door.said] == [Admitted, Admitted]
    assert door.is_in(door.ask("b", 4, "u"))


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


def test_a_move_that_other_limits_forbid_is_refused() -> None:
    """Else nobody would come in there until its time is over."""
    door = Door(replace(BOUNDS, inflight=20, upstreams={"v": 8}))
    mover, runs = door.ask("a", 8, "u"), door.ask("b", 4, "v")
    door.take(door.ledger.receive(Move(mover, "v"), 0.0))
    door.take(door.ledger.reconfigure(replace(BOUNDS, inflight=20, upstreams={"v": 4}), 1.0))
    assert (door.refusal(mover).reason, door.refusal(mover).limit) == ("too_wide", 4)
    door.leave(runs)
    assert door.is_in(door.ask("c", 4, "v"))


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


def test_what_a_lost_workers_requests_have_spent_is_not_known_so_the_guess_stands() -> None:
    rates = Rates(tokens=1000)
    door = Door()
    door.ask("a", rates=rates, tokens=500)
    door.ledger.lost("a-", 0.0)
    assert door.refusal(door.ask("a", rates=rates, tokens=600)).reason == "tokens"
    assert door.is_in(door.ask("a", rates=rates, tokens=500))


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


def test_among_too_many_keys_some_have_nothing_to_remember_and_some_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """All were busy together, more than are remembered; then all leave."""
    monkeypatch.setattr(accounts, "LEAST_SWEEP", 4)
    monkeypatch.setattr(accounts, "MOST_KEYS", 16)
    door = Door(Bounds(inflight=100, queue=100, seconds=10.0))
    plain = [door.ask(f"k{number}") for number in range(2)]
    spent = [door.ask(f"r{number}", rates=Rates(requests=1)) for number in range(18)]
    assert door.ledger.keys == 20
    door.leave(*plain, *spent)
    assert door.is_in(door.ask("another"))
    assert door.ledger.keys == 20 - 2 - 16 // 8 + 1
    assert door.refusal(door.ask("r17", rates=Rates(requests=1))).reason == "requests"


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
