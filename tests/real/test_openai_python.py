"""The official Python client against both roads: what it is given must be what it can digest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.ports import free_port
from tests.real.at_once import at_once
from tests.real.fixtures import MODEL
from tests.real.processes import Server, nproxy

pytestmark = pytest.mark.model

ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Write one sentence about the sea."}],
    "temperature": 0.9,
}


@pytest.fixture
def client(road: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=road.v1, api_key="unused", max_retries=0, timeout=60.0) as opened:
        yield opened


def test_create_gives_n_choices(client: OpenAI) -> None:
    create = client.chat.completions.create
    one, four = at_once(
        lambda: create(**ASKED, max_tokens=16),
        lambda: create(**ASKED, max_tokens=16, n=4),
    )

    assert [choice.index for choice in four.choices] == [0, 1, 2, 3]
    assert all(choice.message.role == "assistant" and choice.message.content for choice in four.choices)
    assert len({choice.message.content for choice in four.choices}) == 4
    assert {choice.finish_reason for choice in four.choices} <= {"stop", "length"}
    assert four.model == MODEL
    assert one.usage and four.usage
    assert four.usage.prompt_tokens == one.usage.prompt_tokens
    assert 4 <= four.usage.completion_tokens <= 4 * 16
    assert four.usage.total_tokens == four.usage.prompt_tokens + four.usage.completion_tokens


def test_stream_has_right_indices(client: OpenAI) -> None:
    asked = {**ASKED, "max_tokens": 16, "n": 4, "seed": 11}
    create = client.chat.completions.create
    chunks, whole = at_once(
        lambda: list(create(**asked, stream=True, stream_options={"include_usage": True})),
        lambda: create(**asked),
    )

    *spoken, tail = chunks
    assert [chunk.choices[0].index for chunk in spoken[:4]] == [0, 1, 2, 3]
    assert [chunk.choices[0].delta.role for chunk in spoken[:4]] == ["assistant"] * 4
    assert all(chunk.choices[0].delta.role is None for chunk in spoken[4:])
    assert {len(chunk.choices) for chunk in spoken} == {1}
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1

    texts, reasons = [""] * 4, [list[str]() for _ in range(4)]
    for chunk in spoken:
        choice = chunk.choices[0]
        assert not reasons[choice.index], "a chunk after its choice had finished"
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            reasons[choice.index].append(choice.finish_reason)
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [[choice.finish_reason] for choice in whole.choices]

    assert tail.choices == []
    assert tail.usage and whole.usage
    beside = {"prompt_tokens_details"}  # the second finds more in the engine's cache than the first, which filled it
    assert tail.usage.model_dump(exclude=beside) == whole.usage.model_dump(exclude=beside)
    assert all(chunk.usage is None for chunk in spoken)


def test_stream_helper_completes(client: OpenAI) -> None:
    # the helper refuses choices that were cut at their length, so these end at their first full stop
    asked = {**ASKED, "max_tokens": 400, "n": 4, "seed": 12, "stop": "."}

    def streamed_with_the_helper() -> tuple[set[str], Any]:
        with client.chat.completions.stream(**asked) as stream:
            return {event.type for event in stream}, stream.get_final_completion()

    (done, folded), whole = at_once(streamed_with_the_helper, lambda: client.chat.completions.create(**asked))

    assert {"chunk", "content.delta", "content.done"} <= done
    assert [choice.index for choice in folded.choices] == [0, 1, 2, 3]
    for streamed, single in zip(folded.choices, whole.choices, strict=True):
        assert streamed.message.role == "assistant"
        assert streamed.message.content == single.message.content
        assert streamed.finish_reason == single.finish_reason


async def test_async_client(road: Server) -> None:
    asked = {**ASKED, "max_tokens": 12, "n": 3, "seed": 13}
    async with AsyncOpenAI(base_url=road.v1, api_key="unused", max_retries=0, timeout=60.0) as client:
        chunks, whole = await asyncio.gather(
            client.chat.completions.create(**asked, stream=True), client.chat.completions.create(**asked)
        )
        texts = ["", "", ""]
        async for chunk in chunks:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


async def test_async_stream_helper(road: Server) -> None:
    asked = {**ASKED, "max_tokens": 400, "n": 4, "seed": 12, "stop": "."}
    async with AsyncOpenAI(base_url=road.v1, api_key="unused", max_retries=0, timeout=60.0) as client:
        async with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
            contents = [event.content async for event in stream if event.type == "content.done"]
            folded = await stream.get_final_completion()
        whole = await client.chat.completions.create(**asked)

    assert [(choice.index, choice.message.content, choice.finish_reason) for choice in folded.choices] == [
        (choice.index, choice.message.content, choice.finish_reason) for choice in whole.choices
    ]
    assert sorted(contents) == sorted(choice.message.content or "" for choice in whole.choices)
    assert folded.usage and whole.usage
    assert folded.usage.model_dump() == whole.usage.model_dump()


def test_legacy_completions(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "seed": 14}
    create, prompts = client.completions.create, ["The sea is", "A cat can"]
    both, sea, cat, chunks = at_once(
        lambda: create(prompt=prompts, n=2, **asked),
        *(partial(create, prompt=prompt, n=2, **asked) for prompt in prompts),
        lambda: list(create(prompt=prompts, n=2, stream=True, **asked)),
    )

    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in both.choices] == [choice.text for choice in [*sea.choices, *cat.choices]]
    assert both.usage and sea.usage and cat.usage
    assert both.usage.prompt_tokens == sea.usage.prompt_tokens + cat.usage.prompt_tokens

    texts = [""] * 4
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in both.choices]


def test_B1_choice_i_is_the_single_request_with_seed_plus_i(client: OpenAI) -> None:
    asked = {**ASKED, "max_tokens": 16}
    four = client.chat.completions.create(n=4, seed=42, **asked)
    singles = at_once(*(partial(client.chat.completions.create, seed=seed, **asked) for seed in range(42, 46)))
    assert [choice.message.content for choice in four.choices] == [one.choices[0].message.content for one in singles]


def test_both_roads_give_the_same_choices(engine_road: Server, fanout_road: Server) -> None:
    answers = []
    for server in (engine_road, fanout_road):
        with OpenAI(base_url=server.v1, api_key="unused", max_retries=0) as client:
            given = client.chat.completions.create(**ASKED, max_tokens=24, n=8, seed=5)
            answers.append([(choice.message.content, choice.finish_reason) for choice in given.choices])
            assert given.usage
            answers[-1].append(given.usage.model_dump())
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("n", "code"),
    [
        (0, "integer_below_min_value"),
        (-1, "integer_below_min_value"),
        (129, "integer_above_max_value"),
        ("2", "invalid_type"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_n_is_a_bad_request(client: OpenAI, n: Any, code: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**ASKED, n=n, stream=stream)
    assert (raised.value.param, raised.value.code, raised.value.type) == ("n", code, "invalid_request_error")


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(**{**ASKED, "model": "no-such-model"}, n=2)
    assert (raised.value.param, raised.value.code) == ("model", "model_not_found")


def test_the_model_list(client: OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]


def test_an_upstream_that_is_down_is_a_server_error(logs: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/v1"
    with (
        nproxy("--upstream", nowhere, log=logs / "down.log", ready="/health") as gateway,
        OpenAI(base_url=gateway.v1, api_key="unused", max_retries=0) as client,
        pytest.raises(openai.InternalServerError) as raised,
    ):
        client.chat.completions.create(**{**ASKED, "model": "any"}, n=2)
    assert raised.value.status_code == 502
    assert raised.value.code == "upstream_unavailable"
