"""The tables: of a leg's states, and of what takes which event."""

from __future__ import annotations

from typing import get_args

import pytest

from nproxy.choices.conduct import HANDLERS
from nproxy.choices.events import Event
from nproxy.choices.states import FINAL, HOLDS_A_CALL, TRANSITIONS, LegState, Signal


def test_nothing_leaves_a_final_state() -> None:
    assert not any(state in FINAL for state, _ in TRANSITIONS)
    with pytest.raises(KeyError):
        TRANSITIONS[LegState.DONE, Signal.FAIL]


def test_every_state_that_is_not_final_can_be_cancelled() -> None:
    for state in set(LegState) - FINAL:
        assert TRANSITIONS[state, Signal.CANCEL] is LegState.CANCELLED


def test_every_state_is_reached() -> None:
    assert set(TRANSITIONS.values()) | {LegState.WAITING} == set(LegState)


def test_after_its_first_event_a_leg_is_called_again_only_where_it_broke_off() -> None:
    kept = {key: after for key, after in TRANSITIONS.items() if key[1] is not Signal.RESTART}
    reached = {LegState.SPEAKING}
    while more := {kept[key] for key in kept if key[0] in reached} - reached:
        reached |= more
    assert LegState.CALLED not in reached


def test_a_call_is_held_only_while_called_or_speaking() -> None:
    opened = {TRANSITIONS[key] for key in TRANSITIONS if key[1] is Signal.OPEN}
    assert opened <= HOLDS_A_CALL and not HOLDS_A_CALL & FINAL


def test_every_event_is_taken() -> None:
    assert {*HANDLERS} == {*get_args(Event)}
