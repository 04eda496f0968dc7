"""Group C: several JSON answers are merged into one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance.reading import Reading
from tests.conformance.scene import SEED, Scene
from tests.conformance.settings import everywhere, of_legs, of_native, of_several
from tests.fakes.behaviour import MODEL, Behaviour, said


@of_legs
async def test_C1_calls_that_end_in_any_order(scene: Scene) -> None:
    holds = {SEED + index: asyncio.Event() for index in range(3)}
    scene.upstream.choose = lambda call: Behaviour(hold=holds[call.body["seed"]])
    asked = asyncio.create_task(scene.whole())
    await scene.upstream.until(lambda: len(scene.upstream.open_calls) == 3)
    for left, index in ((2, 2), (1, 0), (0, 1)):
        holds[SEED + index].set()
        await scene.upstream.until(lambda left=left: len(scene.upstream.open_calls) == left)  # type: ignore[misc]
    assert (await asked).texts == scene.said


@of_native
async def test_C1_choices_that_stand_in_any_order(scene: Scene) -> None:
    scene.does(whole_quirk=lambda answer: {**answer, "choices": [answer["choices"][i] for i in (2, 0, 1)]})
    assert (await scene.whole()).texts == scene.said


@of_legs
async def test_C2_every_call_calls_its_choice_0(scene: Scene) -> None:
    def counted(answer: dict[str, Any]) -> dict[str, Any]:
        assert [choice["index"] for choice in answer["choices"]] == [0]
        return answer

    scene.does(whole_quirk=counted)
    assert [choice["index"] for choice in (await scene.whole()).choices] == [0, 1, 2]


@of_native
async def test_C2_a_server_that_calls_all_choices_0(scene: Scene) -> None:
    scene.does(whole_quirk=lambda a: {**a, "choices": [{**choice, "index": 0} for choice in a["choices"]]})
    assert (await scene.whole()).texts == scene.said
    assert len(scene.calls) == 1, "they are told apart by their places"


@of_several
async def test_C3_one_id_one_time_and_the_clients_model(scene: Scene) -> None:
    scene.does(whole_quirk=lambda answer: {**answer, "model": "theirs-v7", "created": 5})
    answer = (await scene.whole()).answer
    assert answer["id"].startswith("chatcmpl-")
    assert answer["created"] > 1_700_000_000
    assert answer["model"] == MODEL


@everywhere
async def test_C4_unknown_keys_are_kept(scene: Scene) -> None:
    def odd(value: int) -> Any:
        def change(answer: dict[str, Any]) -> dict[str, Any]:
            for choice in answer["choices"]:
                choice["odd"] = {"a": [value]}
            return {**answer, "service_tier": value}

        return change

    scene.does(whole_quirk=odd(1))
    scene.choice_does(0, whole_quirk=odd(0))
    answer = await scene.whole()
    assert answer.answer["service_tier"] == 0, "the first call's"
    expected = [0] if scene.legs == 1 else [0, 1, 1]
    assert [choice["odd"]["a"][0] for choice in answer.choices] == (expected * 3)[: scene.n]


def azure(chunks: list[Any]) -> list[Any]:
    """Every chunk with text has content filter results, and every chunk is padded."""
    judged = {"content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}}
    return [
        {**c, "obfuscation": "x" * at} | ({"choices": [{**c["choices"][0], **judged}]} if c["choices"] else {})
        for at, c in enumerate(chunks)
    ]


@of_native
async def test_C11_what_stands_beside_the_text_is_not_strung_together(scene: Scene) -> None:
    await scene.start(n="native", usage="stream")
    scene.does(quirk=azure)
    answer = await scene.whole()
    judged = [choice["content_filter_results"] for choice in answer.choices]
    assert judged == [{"hate": {"filtered": False, "severity": "safe"}}] * scene.n
    assert answer.texts == scene.said
    assert "obfuscation" not in answer.answer


@everywhere
async def test_C13_choices_that_nobody_asked_for_are_left_out(scene: Scene) -> None:
    def more(answer: dict[str, Any]) -> dict[str, Any]:
        surplus = [{**answer["choices"][-1], "index": len(answer["choices"]) + at} for at in range(2)]
        return {**answer, "choices": answer["choices"] + surplus, "error": ""}

    scene.does(whole_quirk=more)
    answer = await scene.whole()
    assert answer.texts == scene.said


@everywhere
async def test_C12_keys_beside_no_choice_are_the_first_calls(scene: Scene) -> None:
    def judging(by: str) -> Any:
        def change(chunks: list[Any]) -> list[Any]:
            first = {key: value for key, value in chunks[0].items() if key != "usage"}
            told = [c if c["choices"] else {**c, "service_tier": by} for c in chunks]
            return [{**first, "choices": [], "prompt_filter_results": [by]}, *told]

        return change

    scene.does(quirk=judging("other"))
    scene.choice_does(0, quirk=judging("first"))
    answer = await scene.stream(stream_options={"include_usage": True})
    silent = [chunk for chunk in answer.chunks if not chunk["choices"]]
    assert [chunk.get("prompt_filter_results") for chunk in silent] == [["first"], None]
    assert silent[-1]["service_tier"] == "first"
    assert answer.texts == scene.said


@of_legs
@pytest.mark.parametrize("stream", [False, True])
async def test_C5_whose_fingerprint(scene: Scene, stream: bool) -> None:
    """In JSON form the fingerprint of the first call; in a stream, that of the first chunk."""

    def printed(index: int) -> dict[str, Any]:
        def chunks(sent: list[Any]) -> list[Any]:
            return [{**chunk, "system_fingerprint": f"fp{index}"} for chunk in sent]

        return {"quirk": chunks, "whole_quirk": lambda answer: chunks([answer])[0]}

    held = asyncio.Event()
    for index in range(3):
        scene.choice_does(index, **printed(index), hold=held if index != 2 else None)
    asked = asyncio.create_task(scene.either(stream))
    await scene.upstream.until(lambda: len(scene.calls) == 3 and len(scene.upstream.open_calls) == 2)
    held.set()
    answer = await asked
    if isinstance(answer, Reading):
        assert {chunk["system_fingerprint"] for chunk in answer.chunks} == {"fp2"}
    else:
        assert answer.answer["system_fingerprint"] == "fp0"


@of_native
@pytest.mark.parametrize("stream", [False, True])
async def test_C7_a_server_that_falls_short_is_asked_again(scene: Scene, stream: bool) -> None:
    scene.does(width=3)
    expected = {index: said(SEED + index) for index in range(5)}
    for _ in range(2):
        assert (await scene.either(stream, n=5)).texts == expected
    assert [call.body["n"] for call in scene.calls] == [5, 2, 5, 2]
    assert await scene.anomalies("short_answer") == 2


@of_legs
async def test_C7_a_call_without_any_choice_is_a_failure(scene: Scene) -> None:
    scene.choice_does(1, whole_quirk=lambda answer: {**answer, "choices": []})
    await scene.refused(502)


@of_several
async def test_C9_without_logprobs_they_are_null(scene: Scene) -> None:
    def without(answer: dict[str, Any]) -> dict[str, Any]:
        for choice in answer["choices"]:
            del choice["logprobs"]
        return answer

    scene.does(whole_quirk=without)
    assert [choice["logprobs"] for choice in (await scene.whole()).choices] == [None] * 3


@of_several
@pytest.mark.parametrize("stream", [False, True])
async def test_C10_equal_texts_are_all_kept(scene: Scene, stream: bool) -> None:
    scene.does(pieces=lambda seed: ["the", " same"])
    assert (await scene.either(stream)).texts == dict.fromkeys(range(3), "the same")
