"""LangChain's ChatOpenAI against a gateway: `python langchain_chat.py BASE_URL MODEL` prints the results as JSON."""

from __future__ import annotations

import asyncio
import json
import sys

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.outputs import LLMResult
from langchain_openai import ChatOpenAI

base_url, model = sys.argv[1:]
chat = ChatOpenAI(
    model=model,
    base_url=base_url,
    api_key="unused",
    max_retries=0,
    timeout=60,
    seed=21,
    max_tokens=40,
    temperature=0.9,
    stop=["."],
)
three = chat.model_copy(update={"n": 3})
sea: list[BaseMessage] = [HumanMessage("Write one sentence about the sea.")]
cat: list[BaseMessage] = [HumanMessage("Write one sentence about a cat.")]


def told(result: LLMResult) -> object:
    """Return the texts and finish reasons for each list of messages, and the usage of all."""
    generations = [
        [(one.text, (one.generation_info or {}).get("finish_reason")) for one in group] for group in result.generations
    ]
    return {"generations": generations, "usage": (result.llm_output or {}).get("token_usage")}


spoken = list(chat.stream(sea, stream_usage=True))
whole = spoken[0]
for chunk in spoken[1:]:
    whole += chunk

json.dump(
    {
        "generate": told(three.generate([sea])),
        "agenerate": told(asyncio.run(three.agenerate([sea, cat]))),
        "invoke": chat.invoke(sea).text,
        "stream": {"text": whole.text, "usage": whole.usage_metadata, "pieces": len(spoken)},
    },
    sys.stdout,
)
