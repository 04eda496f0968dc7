"""Group B: which seed each call carries."""

from __future__ import annotations

import json

import pytest

from tests.conformance.scene import COMPLETIONS, SEED, Scene
from tests.conformance.settings import FANOUT, everywhere, of_legs, of_native, of_one, of_several, settings
from tests.fakes.behaviour import Behaviour, said

by_the_server = settings(FANOUT, why="one call carries one seed, and the server makes n of it")


@of_several
@pytest.mark.parametrize("stream", [False, True])
async def test_B1_choice_i_answers_to_seed_plus_i(scene: Scene, stream: bool) -> None:
    assert (await scene.either(stream)).texts == {0: said(42), 1: said(43), 2: said(44)}
    assert sorted(call.body["seed"] for call in scene.calls) == ([42] if scene.setting.native else [42, 43, 44])
    assert (await scene.either(stream, n=1)).texts == {0: said(42)}


@by_the_server
async def test_B2_without_a_seed_the_choices_differ(scene: Scene) -> None:
    for _ in range(2):
        await scene.whole(n=8, seed=None)
    seeds = [call.body["seed"] for call in scene.calls]
    assert len(set(seeds)) == 16, "those of two requests differ, too"
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert max(seeds) > 2**24, "they use the whole range"


@by_the_server
async def test_B4_the_greatest_seed_wraps(scene: Scene) -> None:
    await scene.whole(n=2, seed=2**63 - 1)
    assert {call.body["seed"] for call in scene.calls} == {2**63 - 1, -(2**63)}


@everywhere
async def test_B5_minus_one_stays(scene: Scene) -> None:
    await scene.whole(seed=-1)
    assert [call.body["seed"] for call in scene.calls] == [-1] * scene.legs


@of_several
async def test_B6_a_refused_seed_is_left_out_and_remembered(scene: Scene) -> None:
    scene.does(refuse=("seed",))
    await scene.whole()
    assert await scene.anomalies("seed_refused") == 1
    before = len(scene.calls)
    await scene.whole()
    assert len(scene.calls) == before + scene.legs
    assert all("seed" not in call.body for call in scene.calls[before:])


@of_one
async def test_B6_at_one_choice_the_client_is_told(scene: Scene) -> None:
    scene.does(refuse=("seed",))
    assert "seed" in (await scene.refused(400))["message"]


@of_one
async def test_B6_at_one_choice_the_client_is_told_also_when_it_is_known(scene: Scene) -> None:
    scene.does(refuse=("seed",))
    await scene.whole(n=2, seed=None)
    assert "seed" in (await scene.refused(400))["message"]
    scene.does()
    assert (await scene.whole()).texts == scene.said


@by_the_server
async def test_B4_B6_a_seed_beyond_the_servers_range_is_not_everybodys(scene: Scene) -> None:
    too_large = b'{"error": {"message": "seeds beyond 32 bits are not supported", "param": "seed"}}'
    scene.upstream.choose = lambda call: (
        Behaviour(status=400, body=too_large) if call.body.get("seed", 0) >= 2**31 else None
    )
    assert (await scene.whole(n=2, seed=2**31 - 1)).texts == {0: said(2**31 - 1), 1: said(0)}
    assert (await scene.whole(seed=SEED)).texts == scene.said, "others keep their seeds"
    assert (await scene.refused(400, n=1, seed=2**40))["param"] == "seed"


@of_legs
async def test_B7_every_prompt_uses_the_same_seeds(scene: Scene) -> None:
    await scene.start(prompts="list")
    answer = await scene.whole(COMPLETIONS, prompt=["a", "b"], n=2)
    assert answer.texts == {0: said(42), 1: said(43), 2: said(42), 3: said(43)}
    assert sorted((call.body["seed"], json.dumps(call.body["prompt"])) for call in scene.calls) == [
        (42, '["a", "b"]'),
        (43, '["a", "b"]'),
    ]


@of_native
async def test_B7_one_call_carries_the_clients_own(scene: Scene) -> None:
    await scene.whole(COMPLETIONS, prompt=["a", "b"], n=2)
    assert [call.body["seed"] for call in scene.calls] == [42]


@everywhere
@pytest.mark.parametrize("stream", [False, True])
async def test_B8_a_call_that_is_made_again_keeps_its_seed(scene: Scene, stream: bool) -> None:
    scene.first_call_does(status=503)
    assert (await scene.either(stream)).texts == scene.said
    assert scene.calls[0].body["seed"] == scene.made_again.body["seed"]
    seeds = [call.body["seed"] for call in scene.calls[1:]]
    assert sorted(seeds) == [SEED + leg for leg in range(scene.legs)]
