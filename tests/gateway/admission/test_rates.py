"""Rates per minute: what goes through in any time, what comes back, how headers show it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nproxy.gateway.admission import known_rates
from nproxy.gateway.admission.known_rates import KnownRates
from nproxy.gateway.admission.messages import Ask, Level
from nproxy.gateway.admission.rates import MINUTE, Charge, Meters, limits_of
from nproxy.gateway.admission.refusals import duration, limited, rate_headers
from nproxy.gateway.callers import Caller, Rates

steps = st.lists(
    st.tuples(st.integers(0, 40).map(lambda half: half / 2), st.integers(1, 30), st.integers(0, 30)), max_size=60
)
"""Seconds to wait, an amount to ask for, what it is in truth."""


@given(limit=st.integers(1, 30), steps=steps)
def test_no_time_sees_more_than_its_share_and_a_minutes_worth(limit: int, steps: list[tuple[float, int, int]]) -> None:
    meters, now, passed = Meters(), 1e6, list[tuple[float, int]]()
    for pause, wanted, _ in steps:
        now += pause
        amount = min(wanted, limit)
        wait = meters.wait("choices", amount, limit, now)
        if not wait:
            meters.charge("choices", amount, limit, now)
            passed.append((now, amount))
        else:
            assert not meters.wait("choices", amount, limit, now + wait), "the wait that was told is long enough"
            assert meters.wait("choices", amount, limit, now + wait - 0.01), "and no longer than needed"
    holds(passed, limit)


@given(limit=st.integers(1, 30), steps=steps, late=st.lists(st.integers(0, 5), min_size=60, max_size=60))
def test_what_comes_back_opens_no_more_than_that(
    limit: int, steps: list[tuple[float, int, int]], late: list[int]
) -> None:
    """Charges turn out to be less, some steps later: what was truly spent keeps to the rate."""
    meters, now = Meters(), 0.0
    open_charges: list[tuple[int, Charge, int]] = []
    passed: list[list[float | int]] = []
    for number, (pause, wanted, truth) in enumerate(steps):
        now += pause
        for due, charge, place in list(open_charges):
            if due <= number:
                open_charges.remove((due, charge, place))
                passed[place][1] = spent = min(truth, charge.amount)
                meters.settle(charge, spent, now)
        amount = min(wanted, limit)
        if not meters.wait("tokens", amount, limit, now):
            open_charges.append((number + 1 + late[number], meters.charge("tokens", amount, limit, now), len(passed)))
            passed.append([now, amount])
    holds([(at, int(amount)) for at, amount in passed], limit)


def holds(passed: list[tuple[float, int]], limit: int) -> None:
    for first, (begin, _) in enumerate(passed):
        total = 0
        for end, amount in passed[first:]:
            total += amount
            assert total <= limit * (1 + (end - begin) / MINUTE) + 1e-6


def test_a_minutes_worth_at_once_then_evenly() -> None:
    meters = Meters()
    for _ in range(7):
        assert not meters.wait("requests", 1, 7, 5.0)
        meters.charge("requests", 1, 7, 5.0)
    assert meters.wait("requests", 1, 7, 5.0) == pytest.approx(60 / 7)
    assert not meters.wait("requests", 1, 7, 5.0 + 60 / 7)
    assert meters.behind("requests", 5.0) == pytest.approx(60)
    assert meters.full(65.01)


def test_what_was_not_spent_comes_back_and_what_was_spent_besides_is_owed() -> None:
    meters = Meters()
    meters.settle(meters.charge("tokens", 100, 100, 0.0), 10, 0.0)
    assert meters.behind("tokens", 0.0) == pytest.approx(6)
    meters.settle(meters.charge("tokens", 10, 100, 0.0), 400, 0.0)
    assert meters.behind("tokens", 0.0) == pytest.approx(6 + 240)
    assert meters.wait("tokens", 1, 100, 0.0) == pytest.approx(246 + 0.6 - 60)


def test_what_is_owed_is_owed_in_units_when_the_limit_changes() -> None:
    meters = Meters()
    charge = meters.charge("tokens", 100, 100, 0.0)
    meters.settle(charge, 3000, 0.0)
    assert meters.wait("tokens", 100, 100, 60.0) == pytest.approx(29 * 60)
    assert meters.behind("tokens", 60.0) == pytest.approx(29 * 60)
    assert not meters.wait("tokens", 100, 10_000, 60.0), "2900 tokens are less than a minute's worth now"
    assert meters.behind("tokens", 60.0) == pytest.approx(60 * 0.29)
    again = meters.charge("tokens", 100, 10_000, 60.0)
    meters.settle(again, 0, 60.0)
    assert meters.wait("tokens", 100, 100, 60.0) == pytest.approx(29 * 60), "and back"


def test_levels_that_were_heard_are_told_under_the_limit_of_now() -> None:
    known = KnownRates()
    caller = Caller("a", "a", rates=Rates(requests=120))
    known.hear(caller, (Level("requests", 2, 60.0),), 0.0)
    assert known.levels(caller, 0.0) == [Level("requests", 120, 1.0)]
    assert known.refusal(caller, 0.0) is None


def test_a_lie_locks_nobody_out_for_longer_than_an_hour() -> None:
    meters = Meters()
    meters.settle(meters.charge("tokens", 10, 100, 0.0), 10**15, 0.0)
    assert meters.behind("tokens", 0.0) == pytest.approx(3600)
    meters.settle(meters.charge("tokens", 100, 100, 0.0), 3000, 0.0)
    assert meters.behind("tokens", 0.0) == pytest.approx(3600 + 1800), "what may be true is owed"


def test_what_time_has_worked_off_does_not_come_back() -> None:
    meters = Meters()
    old = meters.charge("tokens", 100, 100, 0.0)
    meters.charge("tokens", 60, 100, 60.0)
    meters.settle(old, 0, 60.0)
    assert meters.behind("tokens", 60.0) == pytest.approx(36)


def test_what_comes_back_late_or_beside_others_takes_nothing_from_later_charges() -> None:
    meters = Meters()
    early = meters.charge("tokens", 60, 60, 0.0)
    meters.charge("tokens", 60, 60, 90.0)
    meters.settle(early, 0, 100.0)
    assert meters.behind("tokens", 100.0) == 50.0, "the early one had been worked off"
    meters = Meters()
    early = meters.charge("tokens", 60, 60, 0.0)
    meters.charge("tokens", 60, 60, 50.0)
    meters.settle(early, 0, 100.0)
    assert meters.behind("tokens", 100.0) == 10.0, "it kept the later one waiting for ten seconds"


@given(
    limits=st.lists(st.sampled_from([30, 45, 60]), min_size=1, max_size=3),
    steps=steps,
    late=st.lists(st.integers(0, 50), min_size=60, max_size=60),
)
def test_in_whatever_order_requests_end_what_they_spent_is_charged_and_nothing_else(
    limits: list[int], steps: list[tuple[float, int, int]], late: list[int]
) -> None:
    """As if the actual amounts had been charged at first."""
    meters, now = Meters(), 1e6
    open_charges: list[tuple[int, Charge, int]] = []
    spent: list[list[float]] = []
    for number, (pause, amount, truth) in enumerate([*steps, *[(0.5, 1, 1)] * 60]):
        limit = limits[number * len(limits) // (len(steps) + 60)]
        now += pause
        for due, charge, place in [each for each in open_charges if each[0] <= number]:
            open_charges.remove((due, charge, place))
            meters.settle(charge, min(truth, charge.amount), now)
            spent[place][1] = min(truth, charge.amount)
        before = 0 if not number else limits[(number - 1) * len(limits) // (len(steps) + 60)]
        meters.wait("tokens", 1, limit, now)  # tells the limit
        for each in spent if before not in (0, limit) else ():  # what is left is so many units
            each[0] = now + (each[0] - now) * before / limit
        open_charges.append((number + 1 + late[number % 60], meters.charge("tokens", amount, limit, now), len(spent)))
        spent.append([now, amount])
        until = 0.0
        for at, units in spent:
            until = max(until, at) + MINUTE * units / limit
        assert meters.behind("tokens", now) == pytest.approx(until - now, abs=1e-3)


def test_many_that_wait_for_their_end_and_many_that_have_ended_are_kept_as_few() -> None:
    meters = Meters()
    waiting = [meters.charge("tokens", 1, 60, 0.0) for _ in range(3)]
    for _ in range(1000):
        meters.settle(meters.charge("tokens", 1, 60, 0.0), 1, 0.0)
    assert len(meters._meters["tokens"]._steps) < 100
    for charge in waiting:
        meters.settle(charge, 0, 0.0)
    assert meters.behind("tokens", 0.0) == 1000.0


def test_what_came_back_before_takes_nothing_from_what_comes_back() -> None:
    meters = Meters()
    for _ in range(3):
        meters.settle(meters.charge("tokens", 60, 60, 0.0), 0, 0.0)
        assert meters.behind("tokens", 0.0) == 0.0


def test_a_guess_beyond_the_limit_takes_all_of_it() -> None:
    ask = Ask("a-1", "k", "u", 3, tokens=5000, rates=Rates(requests=None, choices=10, tokens=100))
    assert limits_of(ask) == (("choices", 3, 10), ("tokens", 100, 100))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (0.0004, "1ms"), (0.02, "20ms"), (0.9999, "1s"), (1, "1s"), (8.64, "8.64s"),
        (59.9999, "1m0s"), (60, "1m0s"), (360, "6m0s"), (361.5, "6m1.5s"), (3600, "1h0m0s"), (3723, "1h2m3s"),
    ],
)  # fmt: skip
def test_times_in_headers(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_headers_are_openais_and_the_same_for_choices() -> None:
    levels = [Level("requests", 60, 1.0), Level("choices", 100, 0.0), Level("tokens", 1000, 90.0)]
    assert rate_headers(levels) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-choices": "100",
        "x-ratelimit-remaining-choices": "100",
        "x-ratelimit-reset-choices": "0s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m30s",
    }


def test_a_wait_is_not_a_second_longer_for_what_floats_lose() -> None:
    """30 seconds by a clock that is at 16,000: the next second would be one too many."""
    headers = limited("", "", 16030.3 - 16000.3 + 2e-12).headers
    assert headers == {"retry-after": "30", "retry-after-ms": "30000"}


@given(limit=st.integers(1, 2000), now=st.floats(0, 1e6))
@example(limit=42, now=0.0)
def test_floats_keep_nobody_out_at_the_door(limit: int, now: float) -> None:
    """All is spent and one comes back: there is room for one, whatever moment the clock of this process shows."""
    meters, known, caller = Meters(), KnownRates(), Caller("ann", "ann", rates=Rates(choices=limit))
    charges = [meters.charge("choices", 1, limit, now) for _ in range(limit)]
    meters.settle(charges[0], 0, now)
    known.hear(caller, (Level("choices", limit, meters.behind("choices", now)),), now)
    assert known.refusal(caller, now) is None


def test_nobody_is_told_to_come_back_in_no_time_and_rounding_costs_no_unit() -> None:
    assert limited("m", "c", 0.0).headers == {"retry-after": "1", "retry-after-ms": "0"}
    assert rate_headers([Level("requests", 7, MINUTE * 6 / 7)])["x-ratelimit-remaining-requests"] == "1"


def test_what_was_heard_of_a_key_is_worked_off_and_no_tokens_keep_it_from_asking() -> None:
    known, caller = KnownRates(), Caller("a", "a", rates=Rates(requests=60, tokens=60))
    known.hear(caller, (Level("requests", 60, 30.0), Level("tokens", 60, 100.0)), 0.0)
    assert [level.behind for level in known.levels(caller, 10.0)] == [20.0, 90.0]
    assert [level.behind for level in known.levels(caller, 40.0)] == [0.0, 60.0]
    assert known.refusal(caller, 0.0) is None
    known.hear(caller, (Level("requests", 60, 60.0),), 0.0)
    refused = known.refusal(caller, 0.0)
    assert refused is not None and refused.reason == "requests"


def test_the_keys_heard_of_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_rates, "MOST_LEVELS", 2)
    known, spent = KnownRates(), (Level("requests", 60, 30.0),)
    ann, bob, cat = (Caller(name, name, rates=Rates(requests=60)) for name in ("ann", "bob", "cat"))
    known.correct("bob", spent, 0.0)
    assert known.levels(bob, 0.0)[0].behind == 0.0, "nobody has asked for it here"
    for caller in (ann, bob, ann, cat):
        known.hear(caller, spent, 0.0)
    assert [known.levels(caller, 0.0)[0].behind for caller in (ann, bob)] == [30.0, 0.0]
