"""Groups A to C, E and J with the engine behind the gateway: choices, seeds, counts and prompts."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.conformance.scene import SEED
from tests.conformance.settings import of_engine
from tests.conformance.with_engine.stage import CHAT, COMPLETIONS, LETTERS, WIDEST, EngineStage

STREAMED = pytest.mark.parametrize("stream", [False, True])


def without_names(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what no two of them share."""
    usage = {key: value for key, value in (answer.get("usage") or {}).items() if key != "prompt_tokens_details"}
    return {**answer, "id": "", "created": 0, "usage": usage}


@of_engine
@pytest.mark.parametrize("fields", [{}, {"n": 1}, {"logprobs": True, "top_logprobs": 2}], ids=str)
async def test_A1_A2_one_choice_is_the_engines_own_answer(stage: EngineStage, fields: dict[str, Any]) -> None:
    body = {**stage.fields(n=None), **fields}
    through = (await (await stage.gateway()).post(body)).json()
    async with httpx.AsyncClient(base_url=stage.engine.url, trust_env=False) as direct:
        own = (await direct.post(CHAT, json=body)).json()
    assert without_names(through) == without_names(own)
    assert list(through) == list(own)


@of_engine
@STREAMED
async def test_A14_C10_equal_choices_are_all_there(stage: EngineStage, stream: bool) -> None:
    answer = await stage.either(stream, temperature=0)
    assert len(answer.texts) == 3
    assert len(set(answer.texts.values())) == 1


@of_engine
async def test_A14_E9_equal_choices_are_computed_once(stage: EngineStage) -> None:
    await stage.start(config={"n_policy": {"greedy": "dedupe"}})
    drawn = stage.counted("tokens_total", type="completion")
    answer = await stage.whole(temperature=0, ignore_eos=True)
    assert len(set(answer.texts.values())) == 1
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == 3 * 8
    assert stage.counted("tokens_total", type="completion") - drawn == 8


@of_engine
async def test_A17_n_cmpl_counts_as_n(stage: EngineStage) -> None:
    assert (await stage.whole(n=None, n_cmpl=2)).texts == (await stage.whole(n=2)).texts


@of_engine
async def test_A18_the_engine_has_no_beams(stage: EngineStage) -> None:
    error = await stage.refused(400, use_beam_search=True)
    assert (error["param"], error["code"]) == ("use_beam_search", "unsupported_parameter")


@of_engine
@STREAMED
async def test_B1_B9_C1_C2_choice_i_answers_to_seed_plus_i(stage: EngineStage, stream: bool) -> None:
    together = (await stage.either(stream)).texts
    alone = [(await stage.either(stream, n=1, seed=SEED + index)).texts[0] for index in range(3)]
    assert together == dict(enumerate(alone))
    assert len(set(alone)) == 3


@of_engine
async def test_B2_without_a_seed_the_choices_differ(stage: EngineStage) -> None:
    both = [await stage.whole(seed=None, n=4, ignore_eos=True, max_tokens=24) for _ in range(2)]
    assert len({text for answer in both for text in answer.texts.values()}) == 8


@of_engine
async def test_B4_the_greatest_seed_wraps(stage: EngineStage) -> None:
    wrapped = (await stage.whole(n=2, seed=2**63 - 1)).texts[1]
    assert wrapped == (await stage.whole(n=1, seed=-(2**63))).texts[0]


@of_engine
async def test_B5_minus_one_asks_for_another_every_time(stage: EngineStage) -> None:
    both = [await stage.whole(seed=-1) for _ in range(2)]
    assert both[0].texts != both[1].texts


@of_engine
async def test_B7_J2_every_prompt_uses_the_same_seeds(stage: EngineStage) -> None:
    both = await stage.whole(COMPLETIONS, prompt=["a", "b"], n=2)
    alone = [(await stage.whole(COMPLETIONS, prompt=prompt, n=2)).texts for prompt in "ab"]
    assert both.texts == {prompt * 2 + index: alone[prompt][index] for prompt in (0, 1) for index in (0, 1)}


@of_engine
async def test_C3_Q2_the_clients_name_for_the_model(stage: EngineStage) -> None:
    await stage.start(models={"mine": "tiny"}, wire="auto")
    assert (await stage.whole(model="mine")).answer["model"] == "mine"
    assert {chunk["model"] for chunk in (await stage.stream(model="mine")).chunks} == {"mine"}


@of_engine
async def test_C5_the_engines_fingerprint_everywhere(stage: EngineStage) -> None:
    whole = (await stage.whole()).answer["system_fingerprint"]
    assert whole.startswith("fp_")
    assert {chunk["system_fingerprint"] for chunk in (await stage.stream()).chunks} == {whole}


@of_engine
async def test_C9_F3_without_logprobs_they_are_null(stage: EngineStage) -> None:
    asked: list[dict[str, Any]] = [{}, {"logprobs": False}]
    for fields in asked:
        whole = await stage.whole(**fields)
        assert [choice["logprobs"] for choice in whole.choices] == [None] * 3
        streamed = await stage.stream(**fields)
        assert all(choice["logprobs"] is None for voice in streamed.voices for choice in voice.choices)


@of_engine
@STREAMED
async def test_E1_the_prompt_counts_once(stage: EngineStage, stream: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    one = (await stage.either(stream, n=1, ignore_eos=True, **options)).usage
    three = (await stage.either(stream, ignore_eos=True, **options)).usage
    assert one is not None and three is not None
    assert three["prompt_tokens"] == one["prompt_tokens"]
    assert (one["completion_tokens"], three["completion_tokens"]) == (8, 24)


@of_engine
async def test_E4_details_that_do_not_apply_are_absent(stage: EngineStage) -> None:
    usage = (await stage.whole()).usage
    assert usage is not None
    assert "completion_tokens_details" not in usage


@of_engine
@STREAMED
async def test_E5_cached_tokens_are_counted_once(stage: EngineStage, stream: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    fields = {"prompt": "x" * 40, "cache_salt": f"E5 {stream}", **options}
    cached = []
    for _ in range(2):
        usage = (await stage.either(stream, COMPLETIONS, **fields)).usage
        assert usage is not None
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 32]


@of_engine
async def test_E11_every_prompt_counts_once(stage: EngineStage) -> None:
    usage = (await stage.whole(COMPLETIONS, prompt=["ab", "cde"], n=2, ignore_eos=True)).usage
    assert usage is not None
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 4 * 8)


@of_engine
@STREAMED
async def test_J1_one_prompt(stage: EngineStage, stream: bool) -> None:
    assert len((await stage.either(stream, COMPLETIONS, prompt="x")).finishes) == 3


@of_engine
@pytest.mark.parametrize(("prompt", "prompts"), [([70, 71], 1), ([[70], [71, 72]], 2), (["a", "b"], 2)], ids=str)
async def test_J3_what_is_one_prompt(stage: EngineStage, prompt: Any, prompts: int) -> None:
    answer = await stage.send(COMPLETIONS, prompt=prompt)
    assert [choice["index"] for choice in answer.json()["choices"]] == list(range(prompts * 3))


@of_engine
async def test_J5_an_empty_text_is_a_prompt(stage: EngineStage) -> None:
    assert len((await stage.whole(COMPLETIONS, prompt="")).texts) == 3


@of_engine
@STREAMED
async def test_J6_echo_comes_once_per_choice(stage: EngineStage, stream: bool) -> None:
    plain = (await stage.either(stream, COMPLETIONS, prompt="Once")).texts
    echoed = (await stage.either(stream, COMPLETIONS, prompt="Once", echo=True)).texts
    assert echoed == {index: "Once" + text for index, text in plain.items()}


@of_engine
async def test_J8_the_engine_takes_no_suffix(stage: EngineStage) -> None:
    assert (await stage.refused(400, COMPLETIONS, suffix="the end"))["param"] == "suffix"


@of_engine
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_J9_E10_the_likeliest_by_the_gateway_and_by_the_engine(stage: EngineStage, path: str) -> None:
    """The gateway asks for the log probabilities and chooses; the engine, asked by itself, chooses the same."""
    fields = {"allowed_token_ids": LETTERS, "best_of": 5, "n": 2}
    chosen = await stage.whole(path, **fields)
    async with httpx.AsyncClient(base_url=stage.engine.url, trust_env=False) as direct:
        own = (await direct.post(path, json=stage.fields(path, **fields))).json()
    said = [c["message"]["content"] if path == CHAT else c["text"] for c in own["choices"]]
    assert list(chosen.texts.values()) == said
    assert [choice["logprobs"] for choice in chosen.choices] == [None, None]
    assert chosen.usage is not None
    assert chosen.usage["completion_tokens"] == own["usage"]["completion_tokens"] == 5 * 8
    told = await stage.whole(path, **fields, logprobs=True if path == CHAT else 0)
    assert told.texts == chosen.texts
    assert all(choice["logprobs"] is not None for choice in told.choices)


@of_engine
async def test_R7_C7_more_than_the_engine_runs_at_once_is_split(stage: EngineStage) -> None:
    wide = await stage.whole(n=WIDEST + 1)
    assert wide.texts[0] == (await stage.whole(n=1)).texts[0]
    assert wide.texts[WIDEST] == (await stage.whole(n=1, seed=SEED + WIDEST)).texts[0]
