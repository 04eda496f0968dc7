"""A chat's second turn on the default model pays for what is new: as usage says it, and as the metrics count it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.engine.asking import ask, counts, texts
from tests.real.metrics import metric
from tests.real.processes import Server

pytestmark = pytest.mark.model

BLOCK = 16
WORDS = ["the", "keeper", "walked", "along", "a", "grey", "shore", "and", "counted", "seven", "small", "boats", "late"]


def counted(url: str) -> dict[str, float]:
    """Prompt tokens so far: computed, found computed, and not found."""
    found = {
        result: metric(url, "nproxy_engine_prefix_cache_tokens_total", result=result) for result in ("hit", "miss")
    }
    return found | {"computed": metric(url, "nproxy_engine_tokens_total", type="prompt")}


@pytest.fixture
async def patient(engine_server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """A client that waits for a long prompt on a busy machine."""
    async with httpx.AsyncClient(base_url=engine_server.url, timeout=280.0, trust_env=False) as opened:
        yield opened


@pytest.mark.timeout(300)
async def test_the_second_turn_of_a_1500_token_chat(engine_server: Server, patient: httpx.AsyncClient) -> None:
    story = " ".join(random.Random(1).choices(WORDS, k=1470))
    messages = [{"role": "user", "content": f"Read this and say what you like in it: {story}"}]
    first = await ask(patient, messages=messages, max_tokens=24, temperature=0)
    prompt, _ = counts(first["usage"])
    assert prompt > 1490

    before = counted(engine_server.url)
    messages += [{"role": "assistant", "content": texts(first)[0]}, {"role": "user", "content": "Why?"}]
    second = await ask(patient, messages=messages, max_tokens=2, temperature=0)
    longer, _ = counts(second["usage"])
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert prompt - BLOCK < cached < longer
    assert cached % BLOCK == 0
    assert longer - cached < prompt / 20
    grown = {name: count - before[name] for name, count in counted(engine_server.url).items()}
    assert grown == {"hit": cached, "miss": longer - cached, "computed": longer - cached}
