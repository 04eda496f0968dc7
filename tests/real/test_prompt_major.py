"""Rollouts as trainers such as TRL take them: a batch of prompts, G completions each, read prompt-major by index.

Choice i * G + j is completion j of prompt i. A trainer lays its rewards over that order; one choice in another's place
would train on the wrong prompt and nobody would see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from openai import OpenAI
from openai.types import CompletionChoice

from tests.real.at_once import at_once
from tests.real.fixtures import MODEL
from tests.real.processes import Server

pytestmark = pytest.mark.model

PROMPTS = ["The sea is", "A cat can", "Once upon a time", "2 + 2 ="]
TOKENS = [[504, 3426, 314], [49, 2644, 416], [6403, 1980, 253, 655], [34, 1232, 216, 34, 446]]
"""The same prompts as the default model's tokenizer has them."""

G = 3
ASKED: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "seed": 60, "temperature": 1.0}


@pytest.fixture
def client(road: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=road.v1, api_key="unused", max_retries=0, timeout=60.0) as opened:
        yield opened


def groups(choices: Sequence[CompletionChoice]) -> list[list[str]]:
    """The texts, cut into one group for each prompt as a trainer cuts them: by position alone."""
    assert [choice.index for choice in choices] == list(range(len(PROMPTS) * G))
    texts = [choice.text for choice in choices]
    return [texts[start : start + G] for start in range(0, len(texts), G)]


@pytest.mark.parametrize("prompts", [PROMPTS, TOKENS], ids=["strings", "token ids"])
def test_each_group_belongs_to_its_prompt(client: OpenAI, prompts: Any) -> None:
    batch, *alone = at_once(
        *(partial(client.completions.create, **ASKED, prompt=prompt, n=G) for prompt in [prompts, *prompts])
    )

    assert groups(batch.choices) == [[choice.text for choice in one.choices] for one in alone]
    assert all(len(set(group)) == G for group in groups(batch.choices))
    assert batch.usage
    assert batch.usage.prompt_tokens == sum(map(len, TOKENS))
    assert batch.usage.completion_tokens == sum(one.usage.completion_tokens for one in alone if one.usage)


def test_a_stream_fills_the_same_places(client: OpenAI) -> None:
    create = partial(client.completions.create, **ASKED, prompt=PROMPTS, n=G)
    whole, chunks = at_once(create, lambda: list(create(stream=True)))
    texts = [""] * len(whole.choices)
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


def test_both_roads_have_the_same_order(engine_road: Server, fanout_road: Server) -> None:
    answers = []
    for server in (engine_road, fanout_road):
        with OpenAI(base_url=server.v1, api_key="unused", max_retries=0) as client:
            given = client.completions.create(**ASKED, prompt=PROMPTS, n=G)
        answers.append((groups(given.choices), [choice.finish_reason for choice in given.choices]))
    assert answers[0] == answers[1]
