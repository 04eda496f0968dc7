"""What a worker gets of what is allowed all together, and what it is told of lessons."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nproxy.choices.lessons import FieldRefused, Lacks, Lesson, NativeWidth, OneAtATime, Scores
from nproxy.config import Config
from nproxy.workers.lessons import lesson_of, taught
from nproxy.workers.messages import NotAMessage, Taught, decode, encode
from nproxy.workers.shares import share


def config(**upstream: object) -> Config:
    return Config.model_validate({"upstreams": [{"name": "u", "replicas": ["http://h/v1"], **upstream}]})


@given(st.integers(1, 16), st.integers(0, 100))
def test_parallel_is_divided_without_loss_and_evenly(workers: int, more: int) -> None:
    whole = config(parallel=workers + more)
    parts = [share(whole, index, workers).upstreams[0].parallel for index in range(workers)]
    numbers = [part for part in parts if isinstance(part, int)]
    assert sum(numbers) == workers + more
    assert numbers == sorted(numbers, reverse=True) and numbers[0] - numbers[-1] <= 1 and numbers[-1] >= 1


def test_no_limit_is_no_limit_for_each() -> None:
    assert share(config(), 1, 4) == config()


@pytest.mark.parametrize(
    "lesson", [NativeWidth(4, 2), FieldRefused("seed"), Lacks("json_usage"), Scores(), OneAtATime("confirmed")]
)
def test_every_lesson_survives_the_way(lesson: Lesson) -> None:
    message = decode(encode(taught("u", "m", lesson)))
    assert isinstance(message, Taught)
    assert lesson_of(message) == lesson


@pytest.mark.parametrize(
    "lesson", [("Unheard", {}), ("NativeWidth", {"asked": "x"}), ("FieldRefused", {"field": "no"})]
)
def test_an_unknown_lesson_is_no_message(lesson: tuple[str, dict[str, object]]) -> None:
    with pytest.raises(NotAMessage):
        lesson_of(Taught("u", "m", lesson))
