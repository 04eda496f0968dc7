"""An open loop's times: so many a second, drawn beforehand, as bursty as was asked for."""

from __future__ import annotations

import random
from itertools import islice, pairwise
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nproxy.cli.bench.schedule import Extent, Open, due_times

loads = st.builds(Open, st.floats(min_value=0.01, max_value=1000), st.floats(min_value=0.1, max_value=100))


def due(load: Open, extent: Extent, seed: int = 1) -> list[float]:
    return list(due_times(load, extent, random.Random(seed)))


@given(loads, st.integers(min_value=0), st.integers(min_value=1, max_value=50))
def test_as_many_as_were_asked_for_in_order_the_first_at_once(load: Open, seed: int, count: int) -> None:
    times = due(load, Extent(count, None), seed)
    assert len(times) == count
    assert times[0] == 0
    assert times == sorted(times)
    assert times == due(load, Extent(count, None), seed)


@given(loads, st.floats(min_value=0.01, max_value=1))
def test_none_is_due_when_the_time_is_over(load: Open, seconds: float) -> None:
    endless = due_times(load, Extent(None, None), random.Random(1))
    times = due(load, Extent(None, seconds))
    assert times == list(islice(endless, len(times)))
    assert times[-1] < seconds <= next(endless)


def test_what_comes_first_ends_it() -> None:
    assert len(due(Open(10), Extent(3, 1000.0))) == 3
    assert due(Open(10), Extent(1000, 0.5))[-1] < 0.5


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 16.0])
def test_rate_and_burstiness(burstiness: float) -> None:
    """The gamma distribution's own figures: mean 1 / rate, deviation over mean 1 / sqrt(shape)."""
    gaps = [after - before for before, after in pairwise(due(Open(20, burstiness), Extent(20_000, None)))]
    assert fmean(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert stdev(gaps) / fmean(gaps) == pytest.approx(burstiness**-0.5, rel=0.05)
