"""Whose turn it is at a server that several accounts share, and whether it limits one of them separately."""

from __future__ import annotations

from typing import Any, cast

from nproxy.upstreams.overload.release_delay import FreedSlot, ReleaseDelay
from nproxy.upstreams.overload.shared_capacity import OwnLimit, SharedCapacity

REPLICA = cast("Any", "replica")


class Waiting:
    """An account with legs that wait, however many are admitted."""

    def __init__(self, shared: SharedCapacity) -> None:
        self.probes = 0
        shared.note_waiting(self, waits=True)

    def accept(self, slot: FreedSlot) -> bool:
        return True

    def nothing_in_flight(self) -> None:
        self.probes += 1


def hosts(shared: SharedCapacity, count: int) -> list[object]:
    """The accounts that get so many slots, one after the other."""
    slots = [FreedSlot(cast("Any", None), REPLICA, ReleaseDelay(), 0, 0, 0) for _ in range(count)]
    for slot in slots:
        shared.offer(slot)
    return [slot.last_host for slot in slots]


def test_an_account_that_was_away_gets_no_credit_for_the_turns_that_it_missed() -> None:
    shared = SharedCapacity()
    busy = Waiting(shared)
    assert hosts(shared, 5) == [busy] * 5
    late = Waiting(shared)
    assert hosts(shared, 5).count(late) in (2, 3)


def test_an_account_that_was_refused_has_one_turn_more_however_often() -> None:
    shared = SharedCapacity()
    one, other = Waiting(shared), Waiting(shared)
    assert hosts(shared, 6).count(one) == 3
    for now in range(3):
        shared.note_refused(one, REPLICA, now, by_turn=True)
    assert hosts(shared, 4) == [one, one, other, one]


def test_only_a_refusal_of_what_was_admitted_by_turn_gives_a_turn_back() -> None:
    shared = SharedCapacity()
    one, other = Waiting(shared), Waiting(shared)
    assert hosts(shared, 2) == [one, other]
    shared.note_refused(other, REPLICA, 0.0, by_turn=False)
    assert hosts(shared, 2) == [one, other]


def test_accounts_probe_only_while_no_call_is_in_flight() -> None:
    shared = SharedCapacity()
    account = Waiting(shared)
    shared.calls = 1
    shared.ensure_probes()
    assert account.probes == 0
    shared.calls = 0
    shared.ensure_probes()
    assert account.probes == 1


def test_what_is_known_of_a_replica_is_forgotten_with_it() -> None:
    shared = SharedCapacity()
    known = shared.release_delay(REPLICA)
    shared.keep([REPLICA])
    assert shared.release_delay(REPLICA) is known
    shared.keep([])
    assert shared.release_delay(REPLICA) is not known


def test_an_answer_disproves_a_separate_limit_at_once() -> None:
    limit = OwnLimit()
    for number in range(OwnLimit.REFUSALS):
        assert not limit.believed(number)
        limit.note_refused(number)
    assert limit.believed(OwnLimit.REFUSALS)
    limit.note_served()
    assert limit.disproved and not limit.believed(OwnLimit.REFUSALS)
