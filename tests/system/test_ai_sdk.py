"""The Vercel AI SDK against both roads. It always asks for one choice."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from tests.real.fixtures import MODEL
from tests.real.processes import Server
from tests.system.tools import run_node

pytestmark = pytest.mark.model


@pytest.fixture
def plain(road: Server) -> ChatCompletion:
    """Send the same request with the official Python client."""
    question: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Write one sentence about the sea."}]
    with OpenAI(base_url=road.v1, api_key="unused", max_retries=0) as client:
        asked: dict[str, Any] = {"seed": 21, "temperature": 0.9, "max_tokens": 16}
        answer: ChatCompletion = client.chat.completions.create(model=MODEL, messages=question, **asked)
        return answer


def agrees(given: dict[str, Any], plain: ChatCompletion) -> None:
    [choice], usage = plain.choices, plain.usage
    assert usage
    assert (given["text"], given["finishReason"]) == (choice.message.content, choice.finish_reason)
    counted = [given["usage"][key] for key in ("inputTokens", "outputTokens", "totalTokens")]
    assert counted == [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]


def test_generate_text(road: Server, plain: ChatCompletion) -> None:
    given = run_node("ai_sdk.mjs", "generateText", road)
    agrees(given, plain)
    assert given["model"] == MODEL


def test_stream_text(road: Server, plain: ChatCompletion) -> None:
    given = run_node("ai_sdk.mjs", "streamText", road)
    agrees(given, plain)
    assert given["errors"] == []
    assert len(given["pieces"]) > 3
    assert "".join(given["pieces"]) == given["text"]


def test_an_error_is_understood(road: Server) -> None:
    refused = run_node("ai_sdk.mjs", "error", road)
    assert refused == {"known": True, "status": 404, "message": "The model 'no-such-model' does not exist."}
