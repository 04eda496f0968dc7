"""Tool calls from the default model, whose template knows no tools: it is told in words, and held to calls."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import httpx
import pytest

from tests.engine.asking import ask, refused, streamed
from tests.engine.conftest import MODEL

pytestmark = pytest.mark.model

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "A forecast", "parameters": SCHEMA}}
TOOLS = [WEATHER, {"type": "function", "function": {"name": "now"}}]
ASKED = {
    "messages": [{"role": "user", "content": "How is the weather in Paris?"}],
    "tools": TOOLS,
    "seed": 1,
    "max_tokens": 60,
    "parallel_tool_calls": False,
}


def the_call(choice: dict[str, Any]) -> tuple[str, Any]:
    (call,) = choice["message"]["tool_calls"]
    assert call["id"].startswith("call_") and call["type"] == "function"
    assert choice["message"]["content"] is None
    return call["function"]["name"], json.loads(call["function"]["arguments"])


async def test_G1_required_calls_are_calls_in_every_choice(client: httpx.AsyncClient) -> None:
    answered = await ask(client, **ASKED, tool_choice="required", n=4)
    for choice in answered["choices"]:
        assert choice["finish_reason"] == "tool_calls"
        name, arguments = the_call(choice)
        if name == "weather":
            assert arguments["city"] in SCHEMA["properties"]["city"]["enum"]  # type: ignore[index]
            assert 1 <= arguments["days"] <= 9
        else:
            assert (name, arguments) == ("now", {})


async def test_G1_and_the_same_ones_in_a_stream(client: httpx.AsyncClient) -> None:
    fields = {**ASKED, "tool_choice": {"type": "function", "function": {"name": "weather"}}, "n": 2, "logprobs": True}
    whole = await ask(client, **fields)
    live = await streamed(client, **fields, stream_options={"include_usage": True})
    names: dict[int, list[str]] = defaultdict(list)
    arguments: dict[int, str] = defaultdict(str)
    told = 0
    for choice in [choice for chunk in live.chunks for choice in chunk["choices"]]:
        told += len((choice["logprobs"] or {}).get("content") or ())
        for call in choice["delta"].get("tool_calls", ()):
            assert call["index"] == 0
            names[choice["index"]] += [call["function"]["name"]] if "id" in call else []
            arguments[choice["index"]] += call["function"].get("arguments", "")
    assert names == {0: ["weather"], 1: ["weather"]}
    assert live.reasons == {0: ["stop"], 1: ["stop"]}  # as OpenAI's does for a function that is named
    assert live.texts == {0: "", 1: ""}
    assert told == whole["usage"]["completion_tokens"] == live.chunks[-1]["usage"]["completion_tokens"]
    for choice in whole["choices"]:
        assert the_call(choice) == ("weather", json.loads(arguments[choice["index"]]))
        assert choice["finish_reason"] == "stop"


async def test_a_schema_that_cannot_be_enforced_is_a_400(client: httpx.AsyncClient) -> None:
    odd = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "odd"}}}}}
    body = {"model": MODEL, **ASKED, "tools": [odd], "tool_choice": "required"}
    status, error = await refused(client, "/v1/chat/completions", body)
    assert (status, error["param"]) == (400, "tools")
