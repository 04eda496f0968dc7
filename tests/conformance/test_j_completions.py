"""Group J: legacy completions, prompt by prompt."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.scene import COMPLETIONS, SEED, Scene
from tests.conformance.settings import FANOUT, NATIVE, everywhere, of_several, settings
from tests.fakes.behaviour import said
from tests.gateway.conftest import body

before_the_plan = settings(FANOUT, NATIVE, why="it is refused before there is a plan")


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_J1_one_prompt(scene: Scene, stream: bool) -> None:
    answer = await scene.either(stream, COMPLETIONS, prompt="x")
    assert answer.texts == scene.said
    assert answer.finishes == scene.stopped


@of_several
@pytest.mark.parametrize("stream", [False, True])
async def test_J2_two_prompts_prompt_major(scene: Scene, stream: bool) -> None:
    answer = await scene.either(stream, COMPLETIONS, prompt=["a", "b"], n=2, echo=True)
    own = {index: ("a" if index < 2 else "b") + said(SEED + index % 2) for index in range(4)}
    assert answer.texts == own


PROMPTS: list[tuple[Any, int]] = [
    ([1, 2, 3], 1),
    ([[1, 2], [3]], 2),
    (["a", "b", "c"], 3),
    (["a"], 1),
    ([""], 1),
    ("", 1),
]


@everywhere
@pytest.mark.parametrize(("prompt", "prompts"), PROMPTS, ids=str)
async def test_J3_J5_what_is_one_prompt(scene: Scene, prompt: Any, prompts: int) -> None:
    await scene.start(prompts="list")
    answer = await scene.send(COMPLETIONS, prompt=prompt)
    assert len(answer.json()["choices"]) == prompts * scene.n
    assert all(call.body["prompt"] == prompt for call in scene.calls)


@before_the_plan
@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param(["a", 1], id="J3-text-and-token"),
        pytest.param([[1], 2], id="J3-list-and-token"),
        pytest.param([1, True], id="J3-bool"),
        pytest.param([["a"]], id="J3-nested-text"),
        pytest.param([], id="J5-empty"),
        pytest.param([[]], id="J5-empty-inside"),
        pytest.param(7, id="J3-number"),
    ],
)
async def test_J3_J5_what_is_no_prompt(scene: Scene, prompt: Any) -> None:
    answer = await (await scene.gateway()).post(body(COMPLETIONS, prompt=prompt, n=2), COMPLETIONS)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert scene.calls == []


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_J6_echo_comes_once_per_choice(scene: Scene, stream: bool) -> None:
    answer = await scene.either(stream, COMPLETIONS, prompt="Once", echo=True)
    assert answer.texts == {index: "Once" + text for index, text in scene.said.items()}


@everywhere
async def test_J8_suffix_goes_on(scene: Scene) -> None:
    await scene.whole(COMPLETIONS, suffix="the end")
    assert [call.body["suffix"] for call in scene.calls] == ["the end"] * scene.legs


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_J4_one_call_for_each_prompt(scene: Scene, stream: bool) -> None:
    await scene.start(prompts="one")
    answer = await scene.either(stream, COMPLETIONS, prompt=["a", "b"], echo=True)
    own = {p * scene.n + i: prompt + text for p, prompt in enumerate("ab") for i, text in scene.said.items()}
    assert answer.texts == own
    prompts = [call.body["prompt"] for call in scene.calls]
    assert sorted(prompts) == ["a"] * scene.legs + ["b"] * scene.legs


@everywhere
@pytest.mark.parametrize("n", ["fanout", "auto"])
async def test_J4_a_server_without_n_gets_one_prompt_unless_it_takes_lists(scene: Scene, n: str) -> None:
    await scene.start(n=n)
    scene.does(n="ignore")
    await scene.whole(COMPLETIONS, prompt="a", n=2)  # this teaches that the server has no n
    before = len(scene.calls)
    await scene.whole(COMPLETIONS, prompt=["a", "b"])
    prompts = [call.body["prompt"] for call in scene.calls[before:]]
    assert sorted(prompts) == ["a"] * scene.n + ["b"] * scene.n
    before = len(scene.calls)
    await scene.whole(COMPLETIONS, prompt=["a"])
    assert [call.body["prompt"] for call in scene.calls[before:]] == ["a"] * scene.n


@everywhere
@pytest.mark.parametrize("prompt", [[1, 2], [[1, 2]], [[1, 2], [3]]], ids=str)
async def test_J4_token_ids_are_one_prompt_too(scene: Scene, prompt: Any) -> None:
    await scene.start(prompts="one")
    await scene.whole(COMPLETIONS, prompt=prompt)
    prompts = [[1, 2], [3]] if prompt == [[1, 2], [3]] else [[1, 2]]
    assert sorted(call.body["prompt"] for call in scene.calls) == sorted(prompts * scene.legs)


@everywhere
async def test_J4_a_server_that_takes_no_token_ids_says_so(scene: Scene) -> None:
    await scene.start(prompts="one")
    scene.does(status=400, body=b'{"error": {"message": "prompt must be a string", "param": "prompt"}}')
    assert (await scene.refused(400, COMPLETIONS, prompt=[1, 2]))["message"] == "prompt must be a string"
