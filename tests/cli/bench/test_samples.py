"""Percentiles: exact while values are kept, and within the promised error beyond."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nproxy.cli.bench.samples import ACCURACY, Samples

seconds = st.lists(st.floats(min_value=0, max_value=1e5), min_size=1, max_size=60)
shares = st.floats(min_value=0.001, max_value=1.0)


def taken(values: list[float], bound: int = 1000) -> Samples:
    samples = Samples(bound)
    samples.extend(values)
    return samples


def nearest_rank(values: list[float], share: float) -> float:
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


@given(seconds, shares)
def test_a_percentile_is_a_value_that_was_measured(values: list[float], share: float) -> None:
    samples = taken(values)
    assert samples.exact
    assert samples.percentile(share) == nearest_rank(values, share)


@given(seconds, shares)
def test_beyond_the_bound_it_is_as_near_as_promised(values: list[float], share: float) -> None:
    samples = taken(values, bound=3)
    true = nearest_rank(values, share)
    assert samples.exact == (len(values) <= 3)
    assert samples.percentile(share) == pytest.approx(true, rel=ACCURACY * 1.001, abs=1.01e-9)


@given(seconds)
def test_number_mean_and_largest_are_exact_either_way(values: list[float]) -> None:
    for samples in (taken(values), taken(values, bound=3)):
        assert (len(samples), samples.largest) == (len(values), max(values))
        assert samples.mean == pytest.approx(sum(values) / len(values))
        assert samples.percentile(1.0) <= samples.largest


@given(seconds, seconds)
def test_values_may_come_after_a_percentile_was_asked_for(first: list[float], then: list[float]) -> None:
    samples = taken(first)
    samples.percentile(0.5)
    samples.extend(then)
    assert samples.percentile(0.5) == nearest_rank(first + then, 0.5)


def test_of_nothing_there_is_none() -> None:
    assert Samples().mean == 0
    with pytest.raises(ValueError, match="no value"):
        Samples().percentile(0.5)
