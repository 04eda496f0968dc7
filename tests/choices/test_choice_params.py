"""`choice_params` on the way to an upstream: one leg for each choice, or as it is where the wire is exact."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.commands import Anomaly
from nproxy.choices.compose import compose
from nproxy.choices.plan import make_plan
from nproxy.openai.errors import ApiError
from nproxy.openai.requests import Request
from tests.choices.conduct_player import EXACT, FANOUT, NATIVE, UNTESTED, Play, chat, completion, drawing
from tests.choices.upstream_says import answer, status, text

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
    request = chat(n=2, choice_params=[{"seed": 1}, {}])
    for body in bodies(request, Capability(seed=False)):
        assert "seed" not in body
    assert Play(request, Capability(seed=False)).anomalies == [Anomaly("seed_omitted")]
    assert Play(chat(n=2, choice_params=[{"top_p": 1}, {}]), Capability(seed=False)).anomalies == []


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


EQUAL: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({"temperature": 0}, [{}, {}]),
    ({"temperature": 0}, [{"seed": 1}, {"temperature": 0, "seed": 2}]),
    ({}, [{"temperature": 0, "top_p": 1}, {"top_p": 1, "temperature": 0.0}]),
]


@pytest.mark.parametrize(("fields", "own"), EQUAL)
def test_A14_and_some_are_equal(fields: dict[str, Any], own: list[dict[str, Any]]) -> None:
    request = chat(n=2, choice_params=own, **fields)
    with pytest.raises(ApiError, match="all choices are equal"):
        make_plan(request, FANOUT, drawing(), "reject")
    for capability in (FANOUT, NATIVE, EXACT):
        play = Play(request, capability, greedy="dedupe")
        (body,) = [json.loads(bytes(compose(request, capability, opened.leg))) for opened in play.opened]
        assert not {"n", "choice_params"} & body.keys() and body["temperature"] == 0
        play.answers(0, answer("x"))
        assert [choice["message"]["content"] for choice in play.reply["choices"]] == ["x", "x"]


@pytest.mark.parametrize("own", [[{}, {"temperature": 0.5}], [{"top_p": 0.5}, {}], [{"temperature": 1}] * 2])
def test_A14_others_are_not(own: list[dict[str, Any]]) -> None:
    assert len(make_plan(chat(n=2, temperature=0, choice_params=own), FANOUT, drawing(), "reject").legs) == 2


def test_B8_legs_that_are_added_have_the_seeds_of_their_choices() -> None:
    """Where a list of prompts was refused, where an answer lacks a prompt, and where a call was cut."""
    own = [{"seed": 5}, {"seed": 9}]
    refused = Play(completion(prompt=["a", "b"], n=2, choice_params=own), NATIVE)
    for leg in (0, 1):
        refused.fails(leg, status(400, b'{"error":{"message":"prompt must be a string","param":"prompt"}}'))
    assert [(o.leg.prompt, o.leg.offset, o.leg.seed) for o in refused.opened[2:]] == [
        *((0, 0, 5), (1, 0, 5)),
        *((0, 1, 9), (1, 1, 9)),
    ]
    short = Play(completion(prompt=["a", "b"], n=2, seed=100, choice_params=own), NATIVE)
    short.answers(1, b'{"choices":[{"index":0,"text":"A","finish_reason":"stop"}]}')
    assert [(o.leg.prompt, o.leg.offset, o.leg.seed) for o in short.opened[2:]] == [(1, 1, 9)]
    cut = Play(
        completion(prompt=["a", "b"], n=2, seed=100, stream=True, choice_params=own),
        NATIVE,
        resume="continue",
        retries=1,
    )
    cut.breaks_off(1, text("x", index=0), text("y", index=1))
    for timer in list(cut.timers):
        if timer.startswith("retry"):
            cut.fires(timer)
    assert [(o.leg.prompt, o.leg.offset, o.leg.seed) for o in cut.opened[2:]] == [(0, 1, 9), (1, 1, 9)]


def test_legs_share_what_is_the_same() -> None:
    request = chat(n=3, choice_params=[{"top_p": 0.1}, {"top_p": 0.2}, {"top_p": 0.3}])
    legs = make_plan(request, FANOUT, drawing()).legs
    assert len({id(compose(request, FANOUT, leg).parts[0]) for leg in legs}) == 1
