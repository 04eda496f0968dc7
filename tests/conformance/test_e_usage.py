"""Group E: the prompt counts once, completions are summed, and partial counts are never reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.scene import COMPLETIONS, SEED, Scene
from tests.conformance.settings import everywhere, of_legs, of_native, of_several
from tests.fakes import quirks
from tests.fakes.answers import usage
from tests.gateway.conftest import CHAT

ASKED = {"include_usage": True}


async def told(scene: Scene, stream: bool, path: str = CHAT, **fields: Any) -> dict[str, Any] | None:
    """The usage that the client gets, in one of the two forms."""
    if stream:
        return (await scene.stream(path, stream_options=ASKED, **fields)).usage
    return (await scene.whole(path, **fields)).usage


def spent(scene: Scene, *completions: int, **details: Any) -> Callable[[list[int]], dict[str, Any]]:
    """The upstream's usage: 10 prompt tokens, and so many completion tokens for choice 0, 1 ..."""
    return lambda seeds: usage(10, sum(completions[seed - SEED] for seed in seeds), **details)


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_E1_completions_are_summed_the_prompt_is_not(scene: Scene, stream: bool) -> None:
    scene.does(usage=spent(scene, 5, 7, 3))
    completion = 15 if scene.n == 3 else 5
    assert await told(scene, stream) == usage(10, completion)


@of_several
@pytest.mark.parametrize("stream", [False, True])
async def test_E1_the_total_is_computed(scene: Scene, stream: bool) -> None:
    count = spent(scene, 5, 7, 3)
    scene.does(usage=lambda seeds: {**count(seeds), "total_tokens": 4711})
    assert await told(scene, stream) == usage(10, 15)


@of_legs
@pytest.mark.parametrize("stream", [False, True])
async def test_E2_different_prompt_counts(scene: Scene, stream: bool) -> None:
    scene.does(usage=lambda seeds: usage(10 + seeds[0] % 3, 1))
    counted = await told(scene, stream)
    assert counted == usage(12, 3)
    assert await scene.anomalies("prompt_tokens_differ") == 1


DETAILS = {
    SEED: {"reasoning_tokens": 3, "audio_tokens": 0},
    SEED + 1: {"reasoning_tokens": 4},
    SEED + 2: {"accepted_prediction_tokens": 1},
}


@of_legs
@pytest.mark.parametrize("stream", [False, True])
async def test_E4_details_are_summed_key_by_key(scene: Scene, stream: bool) -> None:
    scene.does(usage=lambda seeds: usage(10, 5, completion_tokens_details=DETAILS[seeds[0]]))
    counted = await told(scene, stream)
    assert counted is not None
    summed = {"reasoning_tokens": 7, "audio_tokens": 0, "accepted_prediction_tokens": 1}
    assert counted["completion_tokens_details"] == summed


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_E4_absent_details_stay_absent(scene: Scene, stream: bool) -> None:
    counted = await told(scene, stream)
    assert counted is not None
    assert "completion_tokens_details" not in counted


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_E4_details_of_one_call_stay(scene: Scene, stream: bool) -> None:
    scene.does(usage=lambda seeds: usage(10, 5, completion_tokens_details={"reasoning_tokens": 5}))
    counted = await told(scene, stream)
    assert counted is not None
    assert counted["completion_tokens_details"] == {"reasoning_tokens": 5 * scene.legs}


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_E5_cached_tokens_are_the_first_calls(scene: Scene, stream: bool) -> None:
    scene.does(usage=lambda seeds: usage(10, 5, prompt_tokens_details={"cached_tokens": 2 + seeds[0] - SEED}))
    counted = await told(scene, stream)
    assert counted is not None
    assert counted["prompt_tokens_details"] == {"cached_tokens": 2}


@everywhere
async def test_E6_never_a_partial_sum(scene: Scene) -> None:
    scene.choice_does(1, usage=False)
    assert await told(scene, stream=False) is None
    streamed = await scene.stream(stream_options=ASKED)
    assert streamed.usage is None
    assert streamed.texts == scene.said


@everywhere
@pytest.mark.parametrize("quirk", [None, quirks.usage_null, quirks.empty_chunks, quirks.usage_beside_the_last_choice])
async def test_E7_one_usage_chunk_and_null_before(scene: Scene, quirk: Any) -> None:
    """The reader refuses a chunk without `usage: null`, a second usage, and anything but `[DONE]` after it."""
    scene.does(quirk=quirk)
    answer = await scene.stream(stream_options=ASKED)
    tail = answer.chunks[-1]
    assert (tail["choices"], tail["usage"]) == ([], usage(5, 4 * scene.n))
    assert tail["system_fingerprint"] == "fp"
    assert all(chunk["usage"] is None for chunk in answer.chunks[:-1])
    assert [chunk.get("system_fingerprint") for chunk in answer.chunks].count("fp") >= len(answer.chunks) - scene.n


@everywhere
@pytest.mark.parametrize("more", [{}, {"continuous_usage_stats": True}], ids=["", "continuous"])
async def test_E7_usage_in_a_choice(scene: Scene, more: dict[str, Any]) -> None:
    """As Moonshot streams it."""
    scene.does(quirk=quirks.usage_in_the_last_choice)
    answer = await scene.stream(stream_options=ASKED | more)
    assert answer.usage == usage(5, 4 * scene.n)


def mlx_vlms(scene: Scene) -> None:
    """The upstream names its counts as mlx-vlm does."""
    scene.does(
        quirk=quirks.usage_named_otherwise,
        whole_quirk=lambda answer: {**answer, "usage": quirks.named_otherwise(answer["usage"])},
    )


@of_legs
@pytest.mark.parametrize("stream", [False, True])
async def test_E1_counts_of_input_and_output(scene: Scene, stream: bool) -> None:
    mlx_vlms(scene)
    assert await told(scene, stream) == usage(5, 12, input_tokens=5, output_tokens=12)


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_E8_counts_of_input_and_output_are_in_the_metrics(scene: Scene, stream: bool) -> None:
    mlx_vlms(scene)
    await scene.send(stream=stream)
    line = 'nproxy_tokens_total{model="fake-model",side="client",type="completion",upstream="fake"}'
    assert await (await scene.gateway()).metric(line) == 4.0 * scene.n


@everywhere
@pytest.mark.parametrize("fields", [{}, {"stream_options": {"include_usage": False}}, {"stream_options": None}])
async def test_E8_what_was_not_asked_for_stays_inside(scene: Scene, fields: dict[str, Any]) -> None:
    answer = await scene.stream(**fields)  # the reader refuses any `usage`
    assert answer.done
    assert all(call.body["stream_options"] == {"include_usage": True} for call in scene.calls)
    line = 'nproxy_tokens_total{model="fake-model",side="client",type="completion",upstream="fake"}'
    assert await (await scene.gateway()).metric(line) == 4.0 * scene.n


@of_several
@pytest.mark.parametrize("stream", [False, True])
async def test_E11_every_prompt_counts_once(scene: Scene, stream: bool) -> None:
    await scene.start(prompts="list")
    scene.does(usage=lambda seeds: usage(7 + 9, len(seeds)))
    assert await told(scene, stream, COMPLETIONS, prompt=["a", "b"], n=2) == usage(16, 4)


def first_prompt_only(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "choices": answer["choices"][:1], "usage": usage(7, 2)}


@of_legs
async def test_E11_where_a_server_reads_only_the_first_prompt(scene: Scene) -> None:
    await scene.start(prompts="list")
    scene.does(whole_quirk=first_prompt_only)
    assert await told(scene, False, COMPLETIONS, prompt=["a", "b"], n=2) == usage(14, 8)


def totals(chunks: list[Any]) -> list[Any]:
    """Several choices come in one chunk, together with the number of tokens that all of them have so far."""
    pairs = [c for c in quirks.together(chunks) if c["choices"]]
    assert len(pairs[0]["choices"]) > 1
    return [{**c, "usage": usage(5, at)} for at, c in enumerate(pairs, 1)]


@of_native
async def test_E13_usage_beside_several_choices_is_that_of_all(scene: Scene) -> None:
    scene.does(quirk=totals)
    answer = await scene.stream(stream_options=ASKED)
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] < 4 * scene.n
    await scene.start(n="native", usage="stream")
    assert (await scene.whole()).usage == answer.usage


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_E14_unknown_counts(scene: Scene, stream: bool) -> None:
    scene.does(usage=lambda seeds: usage(5, 4, prompt_cache_hit_tokens=seeds[0] - SEED, cost=0.25))
    counted = await told(scene, stream)
    assert counted == usage(5, 4 * scene.legs, prompt_cache_hit_tokens=0, cost=0.25 * scene.legs)


def continuous(chunks: list[Any]) -> list[Any]:
    """vLLM's continuous_usage_stats: every chunk with text carries the call's total so far."""
    told, so_far = [], 0
    for chunk in chunks:
        if chunk["choices"]:
            so_far += bool((chunk["choices"][0]["delta"]).get("content"))
            chunk = {**chunk, "usage": usage(5, so_far)}
        told.append(chunk)
    return told


@everywhere
async def test_E12_a_running_total_of_the_whole_request(scene: Scene) -> None:
    """The reader refuses a total that decreases."""
    scene.does(quirk=continuous if not scene.setting.native else _continuous_per_choice)
    answer = await scene.stream(stream_options={**ASKED, "continuous_usage_stats": True})
    totals = [chunk["usage"]["completion_tokens"] for chunk in answer.chunks if chunk["usage"] and chunk["choices"]]
    assert totals == sorted(totals)
    assert totals[-1] == 4 * scene.n
    assert answer.usage == usage(5, 4 * scene.n)


def _continuous_per_choice(chunks: list[Any]) -> list[Any]:
    so_far: dict[int, int] = {}
    told = []
    for chunk in chunks:
        if chunk["choices"]:
            choice = chunk["choices"][0]
            so_far[choice["index"]] = so_far.get(choice["index"], 0) + bool(choice["delta"].get("content"))
            chunk = {**chunk, "usage": usage(5, so_far[choice["index"]])}
        told.append(chunk)
    return told
