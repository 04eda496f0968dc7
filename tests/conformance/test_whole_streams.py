"""Whole streams, everything about them drawn."""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.whole_streams import play


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_no_quirk_no_cut_and_no_order_shows(rng: Random) -> None:
    """Never a wrong index, a lost token, a doubled role, usage counted twice, or an end that does not come."""
    play(rng)


def test_many_more() -> None:
    """Plain random numbers go ten times as far in the same time; `make fuzz` goes on from here."""
    for seed in range(1800):
        play(Random(seed))
