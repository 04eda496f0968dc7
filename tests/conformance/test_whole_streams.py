"""Random whole streams."""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.whole_streams import play


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_no_quirk_no_cut_and_no_order_shows(rng: Random) -> None:
    """Never a wrong index, a lost token, a second role, usage counted twice, or a missing end."""
    play(rng)


def test_many_more() -> None:
    """Plain random numbers allow ten times as many plays in the same time; `make fuzz` plays more."""
    for seed in range(1800):
        play(Random(seed))
