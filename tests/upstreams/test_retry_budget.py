"""The retry budget: a share of the last calls, and a floor."""

from nproxy.upstreams.retry_budget import RetryBudget


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def spend(budget: RetryBudget) -> int:
    """Take retries until there are none left."""
    taken = 0
    while budget.take():
        taken += 1
        assert taken < 10_000
    return taken


def test_floor_without_calls() -> None:
    assert spend(RetryBudget(0.2, Clock())) == 100


def test_share_of_the_calls() -> None:
    budget = RetryBudget(0.2, Clock())
    for _ in range(1000):
        budget.count_call()
    assert spend(budget) == 300


def test_calls_and_retries_are_forgotten_after_the_window() -> None:
    clock = Clock()
    budget = RetryBudget(0.2, clock)
    for _ in range(1000):
        budget.count_call()
    assert spend(budget) == 300
    clock.now += 9.0
    assert spend(budget) == 0
    clock.now += 1.0
    assert spend(budget) == 100


def test_window_slides_second_by_second() -> None:
    clock = Clock()
    budget = RetryBudget(0.0, clock)
    assert [budget.take() for _ in range(60)] == [True] * 60
    clock.now += 5.0
    assert spend(budget) == 40
    clock.now += 5.0  # the first 60 are out of the window, the 40 are not
    assert spend(budget) == 60
