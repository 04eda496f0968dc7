"""`choice_params` on the way to an upstream: one leg for each choice, or as it is where the wire is exact."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.compose import compose
from nproxy.choices.plan import make_plan
from nproxy.openai.requests import Request
from tests.choices.conduct_player import EXACT, FANOUT, NATIVE, UNTESTED, Play, chat, completion, drawing
from tests.choices.upstream_says import answer

OWN: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 1.5, "stop": ["x"]}, {}]


def bodies(request: Request, capability: Capability) -> list[Any]:
    legs = make_plan(request, capability, drawing()).legs
    return [json.loads(bytes(compose(request, capability, leg))) for leg in legs]


@pytest.mark.parametrize("capability", [FANOUT, NATIVE, UNTESTED, Capability(native_width=2)])
def test_one_leg_for_each_choice(capability: Capability) -> None:
    request = chat(n=3, temperature=0.7, choice_params=OWN)
    assert make_plan(request, capability, drawing()).way.mode == "fanout"
    sent = bodies(request, capability)
    assert [body["temperature"] for body in sent] == [0, 1.5, 0.7]
    assert [body.get("stop") for body in sent] == [None, ["x"], None]
    assert all(not {"choice_params", "n"} & body.keys() for body in sent)


@pytest.mark.parametrize("n", [1, 3])
def test_an_exact_wire_takes_the_field_as_it_is(n: int) -> None:
    request = chat(n=n, choice_params=OWN[:n])
    (leg,) = make_plan(request, EXACT, drawing()).legs
    assert bytes(compose(request, EXACT, leg)) == request.body.raw


def test_at_one_choice() -> None:
    for capability in (FANOUT, NATIVE):
        (body,) = bodies(chat(temperature=1, seed=3, choice_params=[{"temperature": 0, "seed": 9}]), capability)
        assert (body["temperature"], body["seed"]) == (0, 9) and "choice_params" not in body


def test_B1_own_seeds_and_the_others_as_ever() -> None:
    own = [{}, {"seed": 7}, {"seed": None}, {"seed": -1}]
    assert [body["seed"] for body in bodies(chat(n=4, seed=42, choice_params=own), NATIVE)] == [42, 7, 44, -1]
    assert [body["seed"] for body in bodies(chat(n=4, choice_params=own), NATIVE)] == [1000, 7, 1002, -1]


def test_B6_an_upstream_without_seeds_gets_none() -> None:
    for body in bodies(chat(n=2, choice_params=[{"seed": 1}, {}]), Capability(seed=False)):
        assert "seed" not in body


def test_one_limit_has_two_names() -> None:
    own = [{"max_tokens": 5}, {"max_completion_tokens": 6}, {}]
    sent = bodies(chat(n=3, max_completion_tokens=9, choice_params=own), FANOUT)
    assert [(body.get("max_tokens"), body.get("max_completion_tokens")) for body in sent] == [
        (5, None),
        (None, 6),
        (None, 9),
    ]


def test_J2_the_same_for_every_prompt() -> None:
    request = completion(prompt=["p", "q"], n=2, choice_params=[{"top_p": 0.1}, {"top_p": 0.2}])
    assert [(body["prompt"], body["top_p"]) for body in bodies(request, NATIVE)] == [
        (["p", "q"], 0.1),
        (["p", "q"], 0.2),
    ]
    split = bodies(request, Capability(prompt_lists=False))
    assert [(body["prompt"], body["top_p"]) for body in split] == [("p", 0.1), ("p", 0.2), ("q", 0.1), ("q", 0.2)]


def test_A14_the_greedy_policy_is_about_equal_choices() -> None:
    play = Play(chat(n=3, temperature=0, choice_params=OWN), greedy="dedupe")
    for leg in range(3):
        play.answers(leg, answer(f"c{leg}"))
    assert [choice["message"]["content"] for choice in play.reply["choices"]] == ["c0", "c1", "c2"]
    make_plan(chat(n=3, temperature=0, choice_params=OWN), FANOUT, drawing(), "reject")


def test_legs_share_what_is_the_same() -> None:
    request = chat(n=3, choice_params=[{"top_p": 0.1}, {"top_p": 0.2}, {"top_p": 0.3}])
    legs = make_plan(request, FANOUT, drawing()).legs
    assert len({id(compose(request, FANOUT, leg).head) for leg in legs}) == 1
