"""`choice_params` and `best_of` in front of the real model, on the engine's own wire and fanned out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import mean
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from tests.real.at_once import at_once
from tests.real.fixtures import MODEL
from tests.real.processes import Server

pytestmark = pytest.mark.model

ASKED: dict[str, Any] = {"model": MODEL, "prompt": "The sea is", "max_tokens": 12, "temperature": 1.0, "seed": 5}
OWN: list[dict[str, Any]] = [{"temperature": 0}, {"seed": 70}, {"max_tokens": 3}, {}]


@pytest.fixture
def client(road: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=road.v1, api_key="unused", max_retries=0, timeout=60.0) as opened:
        yield opened


def test_each_choice_is_what_it_would_be_alone(client: OpenAI) -> None:
    together = client.completions.create(**ASKED, n=4, extra_body={"choice_params": OWN})
    singles = [{**ASKED, "seed": 5 + index, **own} for index, own in enumerate(OWN)]
    alone = [one.choices[0] for one in at_once(*(partial(client.completions.create, **asked) for asked in singles))]
    assert [choice.text for choice in together.choices] == [choice.text for choice in alone]
    assert len({choice.text for choice in together.choices}) == 4

    texts = [""] * 4
    for chunk in client.completions.create(**ASKED, n=4, stream=True, extra_body={"choice_params": OWN}):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in alone]


@pytest.mark.parametrize(
    ("own", "param"), [([{}], "choice_params"), ([{}, {"temperature": "hot"}], "choice_params.1.temperature")]
)
def test_what_cannot_be_is_refused_alike(client: OpenAI, own: Any, param: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.completions.create(**ASKED, n=2, extra_body={"choice_params": own})
    assert refused.value.param == param


def test_J12_the_likeliest_of_three_is_the_same_on_both_roads(client: OpenAI) -> None:
    """The engine draws them in one group; fanned out, they are calls of their own, and nproxy chooses."""
    create = client.completions.create
    answers = at_once(lambda: create(**ASKED, best_of=3), lambda: create(**ASKED, n=3, logprobs=0))
    [best], drawn = (answer.choices for answer in answers)
    means = [mean(choice.logprobs.token_logprobs) for choice in drawn]
    assert best.text == drawn[means.index(max(means))].text
    assert best.logprobs is None
