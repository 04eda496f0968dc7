"""Groups D and E with the engine behind the gateway: what a stream looks like, and what it counts."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.conformance.scene import COMPLETIONS
from tests.conformance.settings import of_engine
from tests.conformance.with_engine.stage import CHAT, LETTERS, EngineStage

ROLE = {"role": "assistant", "content": ""}
USAGE = {"include_usage": True}
WIDTHS = pytest.mark.parametrize("n", [1, 3])
PATHS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


@of_engine
@WIDTHS
async def test_D1_the_prelude_stands_before_the_first_speaker(stage: EngineStage, n: int) -> None:
    answer = await stage.stream(n=n)
    first = [chunk["choices"][0] for chunk in answer.chunks[:n]]
    assert [(choice["index"], choice["delta"]) for choice in first] == [(index, ROLE) for index in range(n)]


@of_engine
@PATHS
@WIDTHS
@pytest.mark.parametrize("asked", [{}, {"stream_options": USAGE}], ids=["", "usage"])
async def test_D4_D5_D7_D9_what_every_stream_keeps(
    stage: EngineStage, path: str, n: int, asked: dict[str, Any]
) -> None:
    """The reader refuses two choices in a chunk, another id, time or model, a second finish, and a late chunk."""
    answer = await stage.stream(path, n=n, **asked)
    assert answer.done
    assert answer.frames.count(b"[DONE]") == 1
    assert sorted(answer.finishes) == list(range(n))


@of_engine
async def test_D6_a_finish_goes_out_at_once(stage: EngineStage) -> None:
    """One choice ends after a token; by the time that the others go on, the client knows."""
    own = [{"max_tokens": 1}, {}, {}]
    answer = await stage.stream(choice_params=own, ignore_eos=True, max_tokens=40)
    ended = next(at for at, c in enumerate(answer.chunks) if c["choices"][0]["finish_reason"] is not None)
    assert answer.chunks[ended]["choices"][0]["index"] == 0
    assert {chunk["choices"][0]["index"] for chunk in answer.chunks[ended + 1 :]} == {1, 2}


def shapes(raw: bytes) -> set[bytes]:
    """The frames of a stream, byte for byte but for texts, names and counts: how many tokens a chunk has is chance."""
    blank = re.sub(rb'"(content|text|id)":"(?:[^"\\]|\\.)*"', rb'"\1":""', raw)
    return set(re.sub(rb'"(created|cached_tokens)":\d+', rb'"\1":0', blank).split(b"\n\n"))


@of_engine
@PATHS
@pytest.mark.parametrize("asked", [{}, {"stream_options": USAGE}], ids=["", "usage"])
async def test_D11_the_engines_bytes_pass(stage: EngineStage, path: str, asked: dict[str, Any]) -> None:
    fields = stage.fields(path, ignore_eos=True, max_tokens=150, allowed_token_ids=LETTERS)  # no answer fits in a chunk
    body = {**fields, "stream": True, **asked}
    through = (await (await stage.gateway()).post(body, path)).content
    async with httpx.AsyncClient(base_url=stage.engine.url, trust_env=False) as direct:
        own = (await direct.post(path, json=body)).content
    assert shapes(through) == shapes(own)
    assert len(shapes(own)) > 6


@of_engine
@PATHS
@WIDTHS
async def test_D16_joined_it_is_the_whole_answer(stage: EngineStage, path: str, n: int) -> None:
    fields = {"n": n, "max_tokens": 60}
    streamed, whole = await stage.stream(path, **fields), await stage.whole(path, **fields)
    assert streamed.texts == whole.texts
    assert streamed.finishes == whole.finishes


@of_engine
async def test_D17_no_number_in_a_delta(stage: EngineStage) -> None:
    answer = await stage.stream(logprobs=True, stream_options=USAGE)
    values = [value for voice in answer.voices for delta in voice.deltas for value in delta.values()]
    assert not [value for value in values if isinstance(value, int | float)]


@of_engine
@PATHS
async def test_E7_one_usage_chunk_and_null_before(stage: EngineStage, path: str) -> None:
    answer = await stage.stream(path, stream_options=USAGE, ignore_eos=True)
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == 24
    tail = answer.chunks[-1]
    assert tail["choices"] == []
    assert tail["system_fingerprint"] == answer.chunks[0]["system_fingerprint"]
    assert all(chunk["usage"] is None for chunk in answer.chunks[:-1])


@of_engine
@WIDTHS
@pytest.mark.parametrize("fields", [{}, {"stream_options": {"include_usage": False}}, {"stream_options": None}])
async def test_E8_what_was_not_asked_for_stays_inside(stage: EngineStage, n: int, fields: dict[str, Any]) -> None:
    answer = await stage.stream(n=n, ignore_eos=True, **fields)  # the reader refuses any `usage`
    assert answer.done
    line = 'nproxy_tokens_total{model="tiny",side="client",type="completion",upstream="tiny"}'
    assert await (await stage.gateway()).metric(line) in (8.0 * n, 0.0)


@of_engine
@WIDTHS
async def test_E12_a_running_total_of_the_whole_request(stage: EngineStage, n: int) -> None:
    """The reader refuses a total that falls."""
    options = {**USAGE, "continuous_usage_stats": True}
    answer = await stage.stream(n=n, ignore_eos=True, stream_options=options)
    totals = [chunk["usage"]["completion_tokens"] for chunk in answer.chunks if chunk["usage"] and chunk["choices"]]
    assert totals == sorted(totals)
    assert totals[-1] == 8 * n
