"""Requests of keys with rates that come and go in the ledger's own process, without an answer: as with one."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.ledger import Ledger
from nproxy.gateway.admission.messages import Admitted, Ask, Leave, Level, Refused
from nproxy.gateway.callers import Rates

FEW = st.none() | st.integers(1, 12)
COMES = st.tuples(st.sampled_from(["ann", "bob"]), st.integers(1, 4), st.integers(0, 20))
GOES = st.tuples(st.integers(0, 99), st.none() | st.integers(0, 40))


def state(ledger: Ledger, now: float) -> object:
    """What is in flight, and what each key has spent that still counts."""
    keys = {
        key: (one.inflight, [one.meters.behind(what, now) for what in ("requests", "choices", "tokens")])
        for key, one in ledger._accounts.by_key.items()
    }
    return ledger.taken, {key: spent for key, spent in keys.items() if spent != (0, [0.0, 0.0, 0.0])}


@given(st.lists(COMES | GOES | st.floats(0, 20), max_size=30), st.builds(Rates, FEW, FEW, FEW))
def test_they_are_charged_and_let_in_as_with_an_answer(steps: list[tuple[str, int, int] | float], rates: Rates) -> None:
    ledger, now, inside = Ledger(Bounds(inflight=8, queue=8, seconds=60)), 0.0, list[str]()
    for number, step in enumerate(steps):
        twin = deepcopy(ledger)
        match step:
            case (str(key), int(choices), int(tokens)):
                ask = Ask(f"x-{number}", key, "u", choices, tokens, rates=rates)
                said = twin.receive(ask, now)
                if (levels := ledger.at_once(ask, now)) is None:
                    assert said == [] or isinstance(said[0], Refused)
                    if said == []:
                        break  # it waits, and so would all others
                    ledger.receive(ask, now)
                else:
                    assert said == [Admitted(ask.ticket, levels)]
                    assert {level.what for level in levels} == {
                        what for what in ("requests", "choices", "tokens") if getattr(rates, what) is not None
                    }
                    inside.append(ask.ticket)
            case (int(place), tokens) if inside:
                leave = Leave(inside.pop(place % len(inside)), tokens)
                said = twin.receive(leave, now)
                if ledger.leave_at_once(leave.ticket, leave.tokens, now):
                    assert said == []
                else:
                    assert rates.tokens is not None and tokens is not None
                    assert ledger.receive(leave, now) == said != []
            case float():
                now += step
        assert state(ledger, now) == state(twin, now)


def test_a_rate_that_is_reached_admits_nobody_and_leaves_no_trace() -> None:
    ledger = Ledger(Bounds(inflight=8, queue=8, seconds=60))
    ask = Ask("x-1", "ann", "u", 1, rates=Rates(requests=1))
    assert ledger.at_once(ask, 0.0) == (Level("requests", 1, 60.0),)
    before = state(ledger, 0.0)
    assert ledger.at_once(Ask("x-2", "ann", "u", 1, rates=Rates(requests=1)), 0.0) is None
    assert state(ledger, 0.0) == before
    assert ledger.leave_at_once("x-1", None, 1.0)
    assert ledger.taken == 0
