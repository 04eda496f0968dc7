"""The official Python client reads choices into types: `parse`, and the stream helper with a `response_format`.

The gateway is a real process; behind it stands a scripted server, since the built-in engine refuses `response_format`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI, LengthFinishReasonError
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream
from tests.real.processes import nproxy

SEED = 40
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Name a colour."}]


class Colour(BaseModel):
    name: str
    wavelength: int


def colour(seed: int) -> list[str]:
    """One JSON object for each seed, cut where no JSON ends."""
    return ['{"na', 'me": "colour ', f'{seed}", "wave', f'length": {seed}', "}"]


def expected(n: int) -> list[Colour]:
    return [Colour(name=f"colour {seed}", wavelength=seed) for seed in range(SEED, SEED + n)]


@pytest.fixture(params=["fanout", "native"])
def n_mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


@pytest.fixture
async def upstream(n_mode: str) -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream(Behaviour(n="native" if n_mode == "native" else "ignore", pieces=colour)) as running:
        yield running


@pytest.fixture
async def client(upstream: FakeUpstream, n_mode: str, tmp_path: Path) -> AsyncIterator[AsyncOpenAI]:
    log = tmp_path / "gateway.log"
    # the scripted server shares this test's event loop, so that only what needs no upstream may be waited for here
    with nproxy("--upstream", upstream.url, "--n", n_mode, log=log, ready="/health") as gateway:
        async with AsyncOpenAI(base_url=gateway.v1, api_key="unused", max_retries=0, timeout=30.0) as opened:
            yield opened


async def test_parse_reads_every_choice(client: AsyncOpenAI, upstream: FakeUpstream, n_mode: str) -> None:
    given = await client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Colour, n=4, seed=SEED)
    assert [choice.index for choice in given.choices] == [0, 1, 2, 3]
    assert [choice.message.parsed for choice in given.choices] == expected(4)
    assert all(choice.message.refusal is None for choice in given.choices)
    assert given.usage
    assert given.usage.total_tokens == given.usage.prompt_tokens + given.usage.completion_tokens

    calls = [call.body for call in upstream.calls]
    assert len(calls) == (4 if n_mode == "fanout" else 1)
    formats = [call["response_format"] for call in calls]
    assert [one["json_schema"]["name"] for one in formats] == ["Colour"] * len(calls)
    assert all(one == formats[0] for one in formats)


async def test_stream_reads_every_choice(client: AsyncOpenAI) -> None:
    done: list[Colour | None] = []
    async with client.chat.completions.stream(
        model=MODEL,
        messages=MESSAGES,
        response_format=Colour,
        n=3,
        seed=SEED,
        stream_options={"include_usage": True},
    ) as stream:
        async for event in stream:
            if event.type == "content.done":
                done.append(event.parsed)
        folded = await stream.get_final_completion()

    assert [choice.index for choice in folded.choices] == [0, 1, 2]
    assert [choice.message.parsed for choice in folded.choices] == expected(3)
    assert sorted(one.wavelength for one in done if one) == [SEED, SEED + 1, SEED + 2]
    assert folded.usage
    assert folded.usage.completion_tokens > 0


async def test_parse_refuses_when_one_choice_was_cut(client: AsyncOpenAI, upstream: FakeUpstream) -> None:
    """The client looks at every choice's finish_reason: each must be the one that its own call gave."""
    upstream.behaviour.finish = lambda seed: "length" if seed == SEED + 2 else "stop"
    with pytest.raises(LengthFinishReasonError) as raised:
        await client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Colour, n=3, seed=SEED)
    assert [choice.finish_reason for choice in raised.value.completion.choices] == ["stop", "stop", "length"]
