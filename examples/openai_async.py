"""Ask several questions concurrently and stream several answers to each: python examples/openai_async.py [QUESTION ...]

OPENAI_BASE_URL: where nproxy listens (default http://127.0.0.1:8000/v1). MODEL: the model's id there.
"""

from __future__ import annotations

import asyncio
import os
import sys

from openai import AsyncOpenAI

QUESTIONS = ("Name an animal that lives in the sea.", "Name a fruit that is not red.", "Name a city by a river.")
N = 2


async def ask(client: AsyncOpenAI, question: str) -> list[str]:
    """Return the answers to one question, each joined from its streamed pieces."""
    texts = [""] * N
    stream = await client.chat.completions.create(
        model=os.environ.get("MODEL", "smollm2-135m-instruct"),
        messages=[{"role": "user", "content": question}],
        n=N,
        temperature=0.7,
        max_tokens=16,
        stream=True,
    )
    async for chunk in stream:
        for choice in chunk.choices:  # pieces of all choices arrive interleaved; the index tells them apart
            texts[choice.index] += choice.delta.content or ""
    return texts


async def main() -> None:
    questions = sys.argv[1:] or QUESTIONS
    async with AsyncOpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "unused"),
    ) as client:
        answers = await asyncio.gather(*(ask(client, question) for question in questions))
    for question, texts in zip(questions, answers, strict=True):
        print(question)
        for index, text in enumerate(texts):
            print(f"  {index}: {' '.join(text.split())}")


if __name__ == "__main__":
    asyncio.run(main())
