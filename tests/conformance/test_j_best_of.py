"""Group J: best_of is done by the gateway, in front of any server that has log probabilities."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conformance.scene import COMPLETIONS, SEED, Scene
from tests.conformance.settings import everywhere, of_native
from tests.fakes.answers import usage
from tests.fakes.behaviour import said
from tests.gateway.conftest import CHAT

PATHS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
BEST = SEED + 2


def likely(answer: dict[str, Any]) -> dict[str, Any]:
    """Make choices the likelier the higher their seed is, up to BEST; those with higher seeds are unlikely."""
    for choice in answer["choices"]:
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        found = re.match(r"seed (\d+)", text)
        assert found is not None and choice["logprobs"] is not None
        seed = int(found[1])
        score = -1.0 / seed if seed <= BEST else -float(seed)
        for entry in choice["logprobs"].get("content", []):
            entry["logprob"] = score
        if "token_logprobs" in choice["logprobs"]:
            choice["logprobs"]["token_logprobs"] = [score] * len(choice["logprobs"]["tokens"])
    return answer


@everywhere
@PATHS
@pytest.mark.parametrize(("best_of", "n", "best"), [(4, 2, [BEST, BEST - 1]), (3, 1, [BEST])])
async def test_J9_E10_the_likeliest_of_many(scene: Scene, path: str, best_of: int, n: int, best: list[int]) -> None:
    gateway = await scene.gateway()
    scene.does(whole_quirk=likely)
    answer = await scene.whole(path, best_of=best_of, n=n)
    assert list(answer.texts.values()) == [said(seed) for seed in best]
    assert all(choice["logprobs"] is None for choice in answer.choices), "the client did not ask for them"
    assert answer.usage == usage(5, 4 * best_of), "all are counted"
    assert len(scene.calls) == (1 if scene.setting.native else best_of)
    for call in scene.calls:
        assert "best_of" not in call.body
        assert call.body["logprobs"] is not False and call.body["logprobs"] is not None
    counted = 'nproxy_choices_total{finish_reason="stop",model="fake-model",upstream="fake"}'
    assert await gateway.metric(counted) == n
    assert await gateway.metric("nproxy_inflight_choices") == 0


@everywhere
@PATHS
async def test_J9_logprobs_that_were_asked_for_stay(scene: Scene, path: str) -> None:
    scene.does(whole_quirk=likely)
    answer = await scene.whole(path, best_of=3, n=1, logprobs=True if path == CHAT else 1)
    assert answer.choices[0]["logprobs"] is not None


@everywhere
@PATHS
@pytest.mark.parametrize("lacks", [{"refuse": ("logprobs",)}, {"logprobs": False}], ids=["refused", "left out"])
async def test_J12_without_log_probabilities_no_random_pick(scene: Scene, path: str, lacks: dict[str, Any]) -> None:
    scene.does(**lacks)
    for _ in range(3):
        error = await scene.refused(400, path, best_of=3, n=1)
        assert (error["param"], error["type"]) == ("best_of", "invalid_request_error")
    legs = 1 if scene.setting.native else 3
    assert len(scene.calls) <= (3 * legs if "refuse" in lacks else 2 * legs), "two answers without them are remembered"
    assert (await scene.whole(path)).texts == scene.said


@everywhere
async def test_J12_one_odd_answer_is_not_held_against_others(scene: Scene) -> None:
    scene.does(whole_quirk=likely)
    for _ in range(2):
        scene.first_call_does(logprobs=False)
        assert (await scene.refused(400, best_of=3, n=1))["param"] == "best_of"
        await scene.whole(best_of=3, n=1)


@of_native
async def test_J12_on_an_exact_wire(scene: Scene) -> None:
    await scene.start(wire="exact")
    scene.does(refuse=("logprobs",))
    assert (await scene.refused(400, COMPLETIONS, best_of=3, n=1))["param"] == "best_of"
    (call,) = scene.calls
    assert call.body["n"] == 3
