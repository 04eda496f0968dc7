"""LiteLLM as a client of a gateway: `python litellm_chat.py BASE_URL MODEL` prints the results as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import litellm

litellm.telemetry = False
litellm.suppress_debug_info = True  # it would print advice to standard output, beside the JSON
base_url, model = sys.argv[1:]
asked: dict[str, Any] = {
    "model": f"openai/{model}",
    "api_base": base_url,
    "api_key": "unused",
    "num_retries": 0,
    "max_retries": 0,
    "timeout": 60,
    "seed": 21,
    "max_tokens": 40,
    "stop": ".",
    "temperature": 0.9,
    "messages": [{"role": "user", "content": "Write one sentence about the sea."}],
}


def streamed(**more: Any) -> list[Any]:
    return [part.model_dump() for part in litellm.completion(**asked, **more, stream=True)]


async def streamed_async(**more: Any) -> list[Any]:
    return [part.model_dump() async for part in await litellm.acompletion(**asked, **more, stream=True)]


def refused() -> dict[str, Any]:
    try:
        litellm.completion(**asked, n=0)
    except litellm.BadRequestError as error:
        return {"status": error.status_code, "message": str(error)}
    return {}


legacy = {key: value for key, value in asked.items() if key != "messages"}
legacy["model"] = f"text-completion-openai/{model}"
json.dump(
    {
        "completion": litellm.completion(**asked, n=3).model_dump(),
        "acompletion": asyncio.run(litellm.acompletion(**asked, n=3)).model_dump(),
        "stream": streamed(stream_options={"include_usage": True}),
        "stream of n": streamed(n=3),
        "async stream of n": asyncio.run(streamed_async(n=3)),
        "text_completion": litellm.text_completion(**legacy, prompt="The sea is", n=2).model_dump(),
        "refused": refused(),
    },
    sys.stdout,
)
