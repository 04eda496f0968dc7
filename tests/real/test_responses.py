"""The Responses API of the built-in engine, through the gateway, with the official Python client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel

from tests.real.at_once import at_once
from tests.real.fixtures import MODEL
from tests.real.processes import Server

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

LONG = "Here is a list of animals: " + "cat, dog, horse, cow, sheep, goat, hen, " * 24 + "and that is all."
ADD: Any = {
    "type": "function",
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"type": "integer", "maximum": 99}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Animal(BaseModel):
    legs: int
    wild: bool


@pytest.fixture(scope="module")
def client(engine_road: Server) -> Iterator[OpenAI]:
    """A client that refuses answers which are not what its types say."""
    with (
        closing[Any](httpx.Client(trust_env=False, timeout=120.0)) as http,
        OpenAI(
            base_url=engine_road.v1,
            api_key="unused",
            max_retries=0,
            http_client=http,
            _strict_response_validation=True,
        ) as opened,
    ):
        yield opened


def test_created_retrieved_listed_and_deleted(client: OpenAI) -> None:
    given = client.responses.create(
        model=MODEL, input="Name a color.", instructions="Be brief.", max_output_tokens=12, extra_body={"seed": 1}
    )
    assert given.id.startswith("resp_")
    assert given.output_text
    assert given.usage is not None
    assert given.usage.total_tokens == given.usage.input_tokens + given.usage.output_tokens
    assert client.responses.retrieve(given.id) == given
    [item] = client.responses.input_items.list(given.id).data
    assert item.type == "message"
    assert item.content[0].model_dump()["text"] == "Name a color."
    client.responses.delete(given.id)
    for method in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(NotFoundError):
            method(given.id)


def test_a_stream_and_its_final_response(client: OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": "Name an animal.", "max_output_tokens": 16, "extra_body": {"seed": 2}}

    def snapshots() -> list[str]:
        with client.responses.stream(**asked) as stream:
            return [event.snapshot for event in stream if event.type == "response.output_text.delta"]

    whole, events, texts = at_once(
        lambda: client.responses.create(**asked), lambda: list(client.responses.create(**asked, stream=True)), snapshots
    )
    types = [event.type for event in events]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert types[:2] == ["response.created", "response.in_progress"]
    assert types[-1] == f"response.{whole.status}"
    assert texts[-1] == whole.output_text


def test_a_second_turn_pays_for_the_new_words_only(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input=LONG, max_output_tokens=8)
    second = client.responses.create(
        model=MODEL, input="Which one is the largest?", previous_response_id=first.id, max_output_tokens=8
    )
    assert first.usage is not None
    assert second.usage is not None
    block = 16
    assert first.usage.input_tokens > 256
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens // block * block
    listed = client.responses.input_items.list(second.id, order="asc").data
    assert [item.model_dump()["role"] for item in listed] == ["user", "assistant", "user"]
    with pytest.raises(NotFoundError) as unknown:
        client.responses.create(model=MODEL, input="And?", previous_response_id="resp_nobody")
    assert unknown.value.param == "previous_response_id"


def test_an_answer_of_a_given_form(client: OpenAI) -> None:
    given = client.responses.parse(
        model=MODEL, input="Describe a cat.", text_format=Animal, max_output_tokens=60, temperature=0
    )
    assert isinstance(given.output_parsed, Animal)


def test_a_call_its_result_and_the_words_behind_it(client: OpenAI) -> None:
    called = client.responses.create(
        model=MODEL, input="Add 2 and 3.", tools=[ADD], tool_choice="required", max_output_tokens=120, temperature=0
    )
    [call] = [item for item in called.output if item.type == "function_call"][:1]
    assert call.name == "add"
    assert set(json.loads(call.arguments)) == {"a", "b"}
    results: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "5"}
        for item in called.output
        if item.type == "function_call"
    ]
    said = client.responses.create(
        model=MODEL, input=results, tools=[ADD], tool_choice="none", previous_response_id=called.id, max_output_tokens=8
    )
    assert said.output_text
    with pytest.raises(BadRequestError, match="No tool call found"):
        client.responses.create(model=MODEL, input=results, max_output_tokens=8)


def test_log_probabilities_and_refusals(client: OpenAI) -> None:
    given = client.responses.create(
        model=MODEL, input="Hi", max_output_tokens=4, include=["message.output_text.logprobs"], top_logprobs=2
    )
    [item] = given.output
    assert item.type == "message"
    [part] = item.content
    assert part.type == "output_text"
    assert given.usage is not None
    assert len(part.logprobs or []) == given.usage.output_tokens
    assert all(len(one.top_logprobs) == 2 for one in part.logprobs or [])
    for wrong, param in (({"n": 2}, "n"), ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type")):
        with pytest.raises(BadRequestError) as refused:
            client.responses.create(model=MODEL, input="Hi", extra_body=wrong)
        assert refused.value.param == param
