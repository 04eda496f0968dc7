"""A14, E9 and K3: what the operator of the gateway decides with `n_policy`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.scene import SEED, Scene
from tests.conformance.settings import everywhere, of_legs, of_several
from tests.fakes.answers import usage
from tests.fakes.behaviour import said

TOKENS = 'nproxy_tokens_total{model="fake-model",side="%s",type="completion",upstream="fake"}'


@of_several
@pytest.mark.parametrize("asked", [{}, {"n": None, "n_cmpl": 3}], ids=["n", "n_cmpl"])
async def test_A14_E9_equal_choices_are_computed_once(scene: Scene, asked: dict[str, Any]) -> None:
    gateway = await scene.start(config={"n_policy": {"greedy": "dedupe"}})
    equal = dict.fromkeys(range(3), said(SEED))
    whole = await scene.whole(temperature=0, **asked)
    assert (whole.texts, whole.usage) == (equal, usage(5, 12))
    streamed = await scene.stream(temperature=0, stream_options={"include_usage": True}, **asked)
    assert (streamed.texts, streamed.finishes, streamed.usage) == (equal, scene.stopped, usage(5, 12))
    assert [call.body.get("n") for call in scene.calls] == [None, None]
    assert await gateway.metric(TOKENS % "client") == 24
    assert await gateway.metric(TOKENS % "upstream") == 8, "what was computed"


@everywhere
async def test_A14_equal_choices_are_refused(scene: Scene) -> None:
    await scene.start(config={"n_policy": {"greedy": "reject"}})
    assert (await scene.refused(400, n=3, temperature=0))["param"] == "n"
    assert scene.calls == []
    assert (await scene.whole(n=1, temperature=0)).texts == {0: said(SEED)}
    assert len((await scene.whole(n=3, temperature=0.1)).choices) == 3


PARTIAL: dict[str, Any] = {"config": {"n_policy": {"on_leg_failure": "partial"}}, "retries": {"per_leg": 0}}


@of_legs
async def test_K3_the_choices_that_came(scene: Scene) -> None:
    gateway = await scene.start(**PARTIAL)
    scene.choice_does(1, status=500)
    answer = await scene.send()
    assert answer.status_code == 200
    assert answer.headers["x-nproxy-partial"] == "2/3"
    texts = [(choice["index"], choice["message"]["content"]) for choice in answer.json()["choices"]]
    assert texts == [(0, said(SEED)), (2, said(SEED + 2))]
    line = 'nproxy_choices_total{finish_reason="%s",model="fake-model",upstream="fake"}'
    assert await gateway.metric(line % "stop") == 2
    assert await gateway.metric(line % "error") == 1


@of_legs
async def test_K3_streams(scene: Scene) -> None:
    await scene.start(**PARTIAL)
    scene.choice_does(1, end_after=2, end="reset")
    answer = await scene.stream()
    assert answer.done
    assert answer.finishes == {0: "stop", 1: "error", 2: "stop"}
    assert (answer.texts[0], answer.texts[2]) == (said(SEED), said(SEED + 2))


@everywhere
async def test_K3_nothing_is_an_error(scene: Scene) -> None:
    await scene.start(**PARTIAL)
    scene.does(status=500)
    answer = await scene.send()
    assert answer.status_code == 500
    assert "x-nproxy-partial" not in answer.headers


@of_legs
@pytest.mark.parametrize("stream", [False, True])
async def test_K3_never_the_default(scene: Scene, stream: bool) -> None:
    scene.choice_does(1, status=500)
    await scene.refused(500, stream=False)
    scene.choice_does(1, end_after=2, end="reset")
    assert (await scene.stream()).error is not None
