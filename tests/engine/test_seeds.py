"""Choice i is the single request with seed s + i: over HTTP, at temperature 1, with no token cut off."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.asking import answer, chat, stream, texts
from tests.engine.conftest import engine
from tests.real.metrics import metric
from tests.real.processes import Server

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

N = 4
QUESTIONS = [
    "Name a color.",
    "Write a short story about a fox and a lighthouse.",
    "Continue: " + "the quick brown fox jumps over the lazy dog, and " * 16,
]


def asked(question: int, **fields: Any) -> dict[str, Any]:
    """32 tokens, whatever they say; each question has seeds of its own."""
    body = {"messages": [{"role": "user", "content": QUESTIONS[question]}], "seed": 100 * question, "max_tokens": 32}
    return chat(**{**body, "ignore_eos": True, **fields})


async def together(client: httpx.AsyncClient, question: int) -> list[str]:
    return texts(await answer(client, "/v1/chat/completions", asked(question, n=N)))


@pytest.fixture(scope="module")
def singles(engine_server: Server) -> list[list[str]]:
    """What each choice is as a request of its own, with nobody else there."""
    with httpx.Client(base_url=engine_server.url, timeout=60.0, trust_env=False) as client:

        def single(question: int, choice: int) -> str:
            body = asked(question, seed=100 * question + choice)
            return texts(client.post("/v1/chat/completions", json=body).raise_for_status().json())[0]

        return [[single(question, choice) for choice in range(N)] for question in range(len(QUESTIONS))]


async def test_B9_alone(client: httpx.AsyncClient, singles: list[list[str]]) -> None:
    assert [await together(client, question) for question in range(len(QUESTIONS))] == singles
    assert len({text for answers in singles for text in answers}) == N * len(QUESTIONS)


async def test_B9_beside_each_other_and_other_traffic(client: httpx.AsyncClient, singles: list[list[str]]) -> None:
    shuffled = random.Random(5)

    async def traffic() -> None:
        for _ in range(6):
            other = asked(shuffled.randrange(len(QUESTIONS)), seed=None, n=3, max_tokens=9)
            await answer(client, "/v1/chat/completions", other)

    async def late(question: int) -> list[str]:
        await asyncio.sleep(0.3 * question)  # each joins the others at another step of theirs
        return await together(client, question)

    async with asyncio.TaskGroup() as group:
        group.create_task(traffic())
        answers = [group.create_task(late(question)) for question in range(len(QUESTIONS))]
        live = group.create_task(stream(client, "/v1/chat/completions", asked(0, n=N)))
    assert [task.result() for task in answers] == singles
    assert [live.result().texts[choice] for choice in range(N)] == singles[0]


@pytest.fixture(scope="module")
def small_engine(default_model: Path, engine_logs: Path) -> Iterator[Server]:
    """An engine whose pool holds about half of what all questions together come to, and prompts in pieces."""
    options = ("--num-blocks", "33", "--max-sequences", "32", "--max-batch-tokens", "64")
    with engine(default_model, *options, log=engine_logs / "small.log") as running:
        yield running


async def test_B9_preempted_and_in_pieces(small_engine: Server, singles: list[list[str]]) -> None:
    async with httpx.AsyncClient(base_url=small_engine.url, timeout=60.0, trust_env=False) as client:
        answers = await asyncio.gather(*(together(client, question) for question in range(len(QUESTIONS))))
    assert answers == singles
    assert metric(small_engine.url, "nproxy_engine_preemptions_total", reason="blocks") > 2
