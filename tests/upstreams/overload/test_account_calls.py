"""Which calls use an account's capacity: those of all accounts, until a limit of its own is believed."""

from __future__ import annotations

from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.overload.account_calls import AccountCalls
from nproxy.upstreams.overload.call_attempt import CallAttempt
from nproxy.upstreams.overload.shared_capacity import OwnLimit, SharedCapacity


def called(calls: AccountCalls) -> CallAttempt:
    attempt = CallAttempt(CallGroup(), 0)
    calls.begin(attempt)
    return attempt


def test_calls_are_numbered_in_the_order_in_which_they_begin() -> None:
    calls = AccountCalls(SharedCapacity())
    first, second = called(calls), called(calls)
    calls.end(first)
    third = called(calls)
    assert [first.number, second.number, third.number] == [1, 2, 3]
    assert (calls.begun, calls.standing) == (3, {2, 3})


def test_other_accounts_count_until_a_limit_of_its_own_is_believed() -> None:
    shared = SharedCapacity()
    one, other = AccountCalls(shared), AccountCalls(shared)
    for calls in (one, other, other):
        called(calls)
    one.answered_at, shared.answered_at = 1.0, 2.0
    one.refused_at, shared.refused_at = 3.0, 4.0
    assert (one.in_flight(9.0), one.last_answer(9.0), one.last_refusal(9.0)) == (3, 2.0, 4.0)
    for number in range(OwnLimit.REFUSALS):
        one.own_limit.note_refused(number)
    assert (one.in_flight(9.0), one.last_answer(9.0), one.last_refusal(9.0)) == (1, 1.0, 3.0)
    later = 9.0 + OwnLimit.SECONDS
    assert (one.in_flight(later), one.last_answer(later), one.last_refusal(later)) == (3, 2.0, 4.0)


def test_an_account_with_a_limit_of_its_own_waits_for_its_capacity_alone() -> None:
    shared = SharedCapacity()
    calls = AccountCalls(shared)
    assert calls.accounts_waiting(9.0) == 1, "itself, even if it is not said to wait"
    for _ in range(3):
        shared.note_waiting(Waiting(), waits=True)
    assert calls.accounts_waiting(9.0) == 3
    for number in range(OwnLimit.REFUSALS):
        calls.own_limit.note_refused(number)
    assert calls.accounts_waiting(9.0) == 1


class Waiting:
    """An account with legs that wait."""

    def accept(self, slot: object) -> bool:
        return False

    def nothing_in_flight(self) -> None:
        raise NotImplementedError
