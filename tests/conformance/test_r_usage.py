"""R4: a server whose JSON answers count one choice only."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.scene import COMPLETIONS, Scene
from tests.conformance.settings import of_legs, of_native, of_one
from tests.fakes.answers import usage
from tests.fakes.quirks import usage_per_choice
from tests.gateway.conftest import CHAT


def counts_one(answer: dict[str, Any]) -> dict[str, Any]:
    each = answer["usage"]["completion_tokens"] // len(answer["choices"])
    return {**answer, "usage": {**answer["usage"], "completion_tokens": each}}


@of_native
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("mode", ["native", {"native_up_to": 2}], ids=["native", "up to 2"])
async def test_R4_such_a_call_is_asked_for_as_a_stream(scene: Scene, path: str, mode: Any) -> None:
    await scene.start(n=mode, usage="stream")
    scene.does(whole_quirk=counts_one, quirk=usage_per_choice)
    answer = await scene.whole(path, n=4)
    assert answer.usage == usage(5, 16)
    assert list(answer.texts.values())[:3] == list(scene.said.values())
    assert all(call.body["stream"] is True for call in scene.calls)


@of_legs
async def test_R4_so_is_one_of_several_prompts(scene: Scene) -> None:
    await scene.start(n="fanout", usage="stream", prompts="list")
    scene.does(n="native", whole_quirk=counts_one, quirk=usage_per_choice)
    answer = await scene.whole(COMPLETIONS, n=2, prompt=["a", "b"])
    assert answer.usage == usage(10, 16)
    assert all(call.body["stream"] is True for call in scene.calls)


@of_one
async def test_R4_one_choice_is_counted_right_by_all(scene: Scene) -> None:
    await scene.start(usage="stream")
    assert (await scene.whole()).usage == usage(5, 4)
    assert "stream" not in scene.calls[0].body


@of_native
async def test_R4_is_a_matter_of_configuration(scene: Scene) -> None:
    scene.does(whole_quirk=counts_one)
    assert (await scene.whole()).usage == usage(5, 4)
    assert "stream" not in scene.calls[0].body
