"""Records added up: rates, measures and failures follow from them, and from nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nproxy.cli.bench.answer import Record
from nproxy.cli.bench.bounds import Bound
from nproxy.cli.bench.measures import MEASURES
from nproxy.cli.bench.tally import Tally
from nproxy.openai.usage import Usage
from tests.cli.bench.records import failed, record, spoken

TWO = record(spoken(1.0, 2.0, 4.0), spoken(0.5, 1.5, finished=2.0), seconds=5.0, completion=8)


def tally(*records: Record) -> Tally:
    it = Tally()
    for each in records:
        it.add(each)
    return it


def test_what_one_request_brings() -> None:
    found = {measure.name: sorted(measure.of(TWO)) for measure in MEASURES}
    assert found == {
        "time_to_first_token": [0.5],
        "time_to_first_token_per_choice": [0.5, 1.0],
        "inter_token": [1.0, 1.0, 2.0],
        "time_per_output_token": [pytest.approx((3.0 + 1.0) / (8 - 2))],
        "choice": [2.0, 4.0],
        "request": [5.0],
        "sibling_skew": [2.0],
    }


def test_for_one_choice_the_time_per_token_is_the_usual_one() -> None:
    one = record(spoken(1.0, 2.0, 3.0), seconds=3.0, completion=5)
    assert tally(one).latencies()["time_per_output_token"].mean == pytest.approx((3.0 - 1.0) / (5 - 1))


def test_what_cannot_be_told_has_no_value() -> None:
    assert set(tally(record(seconds=2.0, completion=4)).latencies()) == {"request"}
    assert "sibling_skew" not in tally(record(spoken(1.0, 2.0))).latencies()
    assert "time_per_output_token" not in tally(record(spoken(1.0))).latencies()


def test_rates_are_of_what_was_answered() -> None:
    it = tally(TWO, TWO, failed("short"))
    rates = it.rates(4.0)
    assert (rates.requests, rates.choices, rates.completion_tokens) == (0.5, 1.0, 4.0)
    assert (it.rates(0.5).requests, it.rates(0.0).requests) == (4.0, 0.0)


@pytest.mark.parametrize(
    ("bounds", "good"),
    [
        ([], None),
        ([Bound("ttft", 0.5)], 1),
        ([Bound("ttft", 0.499)], 0),
        ([Bound("e2el", 5.0)], 2),
        ([Bound("e2el", 4.9)], 1),  # the answer in one piece
        ([Bound("tpot", 1.0)], 1),
        ([Bound("tpot", 0.6)], 0),
        ([Bound("ttft", 9.0), Bound("e2el", 4.9)], 0),
    ],
)
def test_goodput_is_of_requests_that_keep_all_bounds(bounds: list[Bound], good: int | None) -> None:
    it = Tally(goodput=bounds)
    for each in (TWO, record(seconds=2.0, completion=4), failed("short"), failed("short")):
        it.add(each)
    found = it.goodput(4.0)
    if found is None:
        assert good is None
    else:
        assert (found.requests, found.share, found.per_second) == (good, (good or 0) / 4, (good or 0) / 4.0)
        assert found.bounds == {bound.name: 1000 * bound.seconds for bound in bounds}


def test_one_token_has_no_time_between_tokens_to_bound() -> None:
    it = Tally(goodput=[Bound("tpot", 0.001)])
    it.add(record(spoken(1.0), completion=1))
    assert it.good == 1


def test_a_failure_counts_nowhere_but_as_one() -> None:
    assert tally(TWO, failed("429", "too many")).latencies() == tally(TWO).latencies()


def test_failures_by_kind_the_most_frequent_first_with_the_first_one_s_words() -> None:
    it = tally(failed("cut", "a"), failed("429", "b"), failed("429", "c"))
    assert [(errors.kind, errors.count, errors.example) for errors in it.errors()] == [("429", 2, "b"), ("cut", 1, "a")]
    requests = it.requests(begun=5)
    assert (requests.ok, requests.failed, requests.unfinished) == (0, 3, 2)


def test_tokens_by_usage_and_where_it_is_missing_by_chunks() -> None:
    tokens = tally(TWO, record(spoken(1.0, 2.0, 3.0))).tokens()
    assert (tokens.prompt, tokens.completion, tokens.by_usage, tokens.by_chunks) == (10, 8 + 3, 1, 1)
    assert tally(TWO, record(spoken(1.0, 2.0, 3.0))).tokens_per_chunk == 8 / 5
    assert tally(record(spoken(1.0))).tokens_per_chunk is None


def test_cached_tokens_as_far_as_the_server_says() -> None:
    told = Record(0.0, 1.0, None, (), 1, Usage(10, 5, prompt_details={"cached_tokens": 8}))
    assert tally(told, TWO).tokens().cached == 8


def test_how_late_is_counted_of_failures_too() -> None:
    assert tally(failed("cut", late=0.25), TWO).late(1.0) == 0.25
    assert Tally().late(0.99) == 0


@given(st.lists(st.lists(st.floats(0, 100), min_size=1, max_size=5), min_size=1, max_size=20))
def test_the_order_in_which_requests_end_changes_nothing(times: list[list[float]]) -> None:
    records = [record(*(spoken(*sorted(of_one)) for _ in range(2))) for of_one in times]
    forth, back = tally(*records), tally(*reversed(records))
    for name, spread in forth.latencies().items():
        assert back.latencies()[name].model_dump(exclude={"mean"}) == spread.model_dump(exclude={"mean"})
    assert forth.tokens() == back.tokens()
