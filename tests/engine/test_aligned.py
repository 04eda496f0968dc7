"""Log probabilities of the default model, in a stream that thinks and then calls: each token with its text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.asking import ask, streamed
from tests.engine.conftest import engine
from tests.real.processes import Server

pytestmark = pytest.mark.model

CITIES = ["Paris", "Rome", "Oslo"]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": CITIES}},
    "required": ["city"],
    "additionalProperties": False,
}
ASKED: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "What is the weather in Rome?"},
        {"role": "assistant", "content": "<think>"},
    ],
    "continue_final_message": True,
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "logit_bias": {"9617": 4},  # "</": a model that was never taught to think comes to an end of it
    "seed": 5,
    "n": 2,
    "max_tokens": 80,
    "choice_params": [{}, {"max_tokens": 8}],  # the one thinks and calls, the other is cut in its thoughts
    "logprobs": True,
    "top_logprobs": 2,
}


@pytest.fixture(scope="module")
def thinking(default_model: Path, engine_logs: Path) -> Iterator[Server]:
    """The default model, read as if it wrote like Qwen3."""
    options = ("--reasoning-parser", "think", "--tool-parser", "hermes")
    with engine(default_model, *options, log=engine_logs / "thinking.log") as running:
        yield running


@pytest.fixture
async def asking(thinking: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=thinking.url, timeout=110.0, trust_env=False) as opened:
        yield opened


def spelled(entries: list[dict[str, Any]]) -> str:
    return b"".join(bytes(entry["bytes"]) for entry in entries).decode(errors="replace")


def shown(delta: dict[str, Any]) -> list[str]:
    """The texts of a delta that a token wrote: of a call its arguments, which come as they were written."""
    arguments = [call["function"]["arguments"] for call in delta.get("tool_calls", ())]
    return [delta.get("reasoning_content", ""), delta.get("content", ""), *arguments]


async def test_F1_every_token_is_reported_with_its_text_through_reasoning_and_calls(asking: httpx.AsyncClient) -> None:
    whole = await ask(asking, **ASKED)
    live = await streamed(asking, **ASKED, stream_options={"include_usage": True})
    called, cut = whole["choices"]
    assert called["finish_reason"] == "tool_calls"
    (call,) = called["message"]["tool_calls"]
    assert call["function"]["arguments"] in [f'{{"city": "{city}"}}' for city in CITIES]
    assert called["message"]["reasoning_content"]
    assert (cut["finish_reason"], cut["message"]["content"]) == ("length", "")

    content = [choice["logprobs"]["content"] for choice in whole["choices"]]
    usage = live.chunks[-1]["usage"]
    assert sum(map(len, content)) == whole["usage"]["completion_tokens"] == usage["completion_tokens"]
    assert 8 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
    written = spelled(content[0])
    assert written.startswith(called["message"]["reasoning_content"] + "</think>")
    assert call["function"]["arguments"] in written

    for index, entries in enumerate(content):
        told: list[dict[str, Any]] = []
        for choice in [c for chunk in live.chunks for c in chunk["choices"] if c["index"] == index][1:]:
            assert choice["logprobs"]["content"], "no chunk without its tokens"
            told += choice["logprobs"]["content"]
            for text in shown(choice["delta"]):
                assert text in spelled(told), "no text ahead of its tokens"
        assert told == entries
        assert all(len(entry["top_logprobs"]) == 2 for entry in told)
