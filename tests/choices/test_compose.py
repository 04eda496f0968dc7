"""What each leg carries."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.compose import asked_as_stream, compose
from nproxy.choices.leg import Leg, Prefix
from nproxy.choices.plan import make_plan
from nproxy.openai.body import Body
from nproxy.openai.requests import Limits, Request, parse_chat
from tests.choices.conduct_player import EXACT, FANOUT, MODEL, NATIVE, UNTESTED, chat, completion, drawing
from tests.openai.spliced import held

BASE = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


def bodies(request: Request, capability: Capability) -> list[Any]:
    plan = make_plan(request, capability, drawing())
    return [json.loads(bytes(compose(request, capability, leg))) for leg in plan.legs]


@pytest.mark.parametrize("raw", [b'{ "messages" :[{}],"model":"m" , "x":1.50,"x2":10000000000000000000000}'])
@pytest.mark.parametrize("extra", [b"", b',"n":null', b',"n": 1', b',"n_cmpl":1'])
def test_A1_A2_one_choice_goes_through_as_sent(raw: bytes, extra: bytes) -> None:
    raw = raw[:-1] + extra + b"}"
    request = parse_chat(Body.parse(raw), Limits())
    (leg,) = make_plan(request, NATIVE, drawing()).legs
    assert bytes(compose(request, NATIVE, leg)) == raw


@pytest.mark.parametrize("n", [None, 1, 2, 5])
def test_A2_in_fan_out_mode_no_leg_carries_n(n: int | None) -> None:
    for body in bodies(chat(n=n), FANOUT):
        assert "n" not in body


@pytest.mark.parametrize("field", ["n", "n_cmpl"])
def test_A17_a_wide_leg_carries_n_by_its_usual_name(field: str) -> None:
    for capability in (NATIVE, UNTESTED, EXACT):
        assert bodies(chat(**{field: 4}), capability) == [{**BASE, "n": 4}]
    widths = [body.get("n") for body in bodies(chat(**{field: 10}), Capability(native_width=4))]
    assert widths == [4, 4, 2]
    assert all("n_cmpl" not in body for body in bodies(chat(**{field: 5}), Capability(native_width=4)))


def test_best_of_equal_to_n_goes_to_no_leg() -> None:
    for body in bodies(completion(n=3, best_of=3), FANOUT):
        assert "best_of" not in body


def test_B1_seeds_on_the_wire() -> None:
    assert [body["seed"] for body in bodies(chat(n=3, seed=42), FANOUT)] == [42, 43, 44]
    assert [body["seed"] for body in bodies(chat(n=3), FANOUT)] == [1000, 1001, 1002]


def test_B6_a_seed_that_is_not_taken_is_left_out() -> None:
    for body in bodies(chat(n=2, seed=3), Capability(seed=False)):
        assert "seed" not in body
    body = bytes(compose(chat(n=2, seed=3), FANOUT, Leg(0, 0, 1, seed=3, omit=frozenset({"seed"}))))
    assert "seed" not in json.loads(body)
    for own in ({}, {"seed": 3}, {"choice_params": [{"seed": 3}, {"seed": 4}]}):
        body = bytes(compose(chat(n=2, **own), FANOUT, Leg(0, 1, 1, seed=4, omit=frozenset({"seed"}))))
        assert "seed" not in json.loads(body)


def test_B6_learned_of_a_server_without_seeds_the_clients_own_is_still_sent_for_one_choice() -> None:
    refused = Capability(seed_refused=True)
    for one in (chat(seed=3), chat(n=1, choice_params=[{"seed": 3}]), completion(prompt=["a", "b"], seed=3)):
        assert {body["seed"] for body in bodies(one, refused)} == {3}
    for several in (chat(n=2, seed=3), chat(n=2), completion(prompt=["a", "b"])):
        assert all("seed" not in body for body in bodies(several, refused))
    assert all("seed" not in body for body in bodies(chat(seed=3), Capability(seed=False))), "as configured"


def test_E8_streams_are_asked_for_usage() -> None:
    (body,) = bodies(chat(stream=True), NATIVE)
    assert body["stream_options"] == {"include_usage": True}
    (body,) = bodies(chat(stream=True, stream_options={"include_usage": False, "x": 1}), NATIVE)
    assert body["stream_options"] == {"include_usage": True, "x": 1}


def test_stream_options_that_are_not_taken_are_left_out_where_the_client_did_not_send_them() -> None:
    for own in ({}, {"stream_options": None}):
        (body,) = bodies(chat(stream=True, **own), Capability(native_width=None, stream_options=False))
        assert "stream_options" not in body
    (body,) = bodies(chat(stream=True, stream_options={"include_usage": True}), Capability(None, stream_options=False))
    assert body["stream_options"] == {"include_usage": True}, "whoever asks for usage gets it, or is told"
    (body,) = bodies(chat(), NATIVE)
    assert "stream_options" not in body and "stream" not in body


def test_include_usage_goes_through_as_sent() -> None:
    request = chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    (leg,) = make_plan(request, NATIVE, drawing()).legs
    assert bytes(compose(request, NATIVE, leg)) == request.body.raw


def test_Q2_the_upstreams_own_name_of_the_model() -> None:
    (body,) = bodies(chat(), Capability(native_width=None, model="org/m-7b"))
    assert body["model"] == "org/m-7b"


def test_A1_a_name_that_is_the_clients_own_goes_through_as_sent() -> None:
    request = parse_chat(Body.parse(b'{"model":"m", "messages" :[{}]}'), Limits())
    same = Capability(native_width=None, model="m")
    (leg,) = make_plan(request, same, drawing()).legs
    assert bytes(compose(request, same, leg)) == request.body.raw


def test_J9_choices_to_choose_from_are_asked_for_as_n() -> None:
    (body,) = bodies(completion(best_of=3), NATIVE)
    assert body["n"] == 3 and "best_of" not in body


def test_R4_a_leg_whose_json_usage_is_wrong_is_asked_for_as_a_stream() -> None:
    capability = Capability(native_width=None, json_usage=False)
    (body,) = bodies(chat(n=2), capability)
    assert body["stream"] is True and body["stream_options"] == {"include_usage": True}
    assert not asked_as_stream(chat(), capability, Leg(0, 0, 1))


def test_R4_a_leg_of_one_choice_for_each_of_several_prompts_too() -> None:
    request, capability = completion(prompt=["a", "b"], n=2), Capability(json_usage=False)
    assert [body["stream"] for body in bodies(request, capability)] == [True, True]
    assert not asked_as_stream(request, capability, Leg(0, 0, 1, prompt=1))


@pytest.mark.parametrize("prompt", [["a", "b"], [[1, 2], [3]]])
def test_J4_one_prompt_per_leg(prompt: list[Any]) -> None:
    sent = [body["prompt"] for body in bodies(completion(prompt=prompt, n=2), Capability(prompt_lists=False))]
    assert sent == [prompt[0], prompt[0], prompt[1], prompt[1]]


def test_J4_a_list_of_one_prompt_is_sent_as_the_prompt() -> None:
    (body,) = bodies(completion(prompt=["a"]), Capability(prompt_lists=False))
    assert body["prompt"] == "a"
    (body,) = bodies(completion(prompt=["a"]), NATIVE)
    assert body["prompt"] == ["a"]


def test_J3_token_ids_stay_one_prompt() -> None:
    (body,) = bodies(completion(prompt=[1, 2]), Capability(prompt_lists=False))
    assert body["prompt"] == [1, 2]


def test_J8_I1_other_fields_go_to_every_leg() -> None:
    for body in bodies(completion(n=2, suffix="s", stop=["x"], logit_bias={"1": -1}), FANOUT):
        assert (body["suffix"], body["stop"], body["logit_bias"]) == ("s", ["x"], {"1": -1})


LONG = "x" * 100_000
MESSAGES = [{"role": "user", "content": LONG}]
BEGUN = [{"role": "user", "content": "go on"}, {"content": LONG, "role": "assistant", "name": "é"}]
MORE, FLAGGED = Prefix('"and é', 1, False), Prefix('"and é', 1, True)
FLAGS = {"continue_final_message": True, "add_generation_prompt": False}


@pytest.mark.parametrize(
    ("request_", "prefix", "sent"),
    [
        pytest.param(chat(n=128, messages=MESSAGES), None, {"messages": MESSAGES}, id="messages"),
        pytest.param(completion(n=128, prompt=[LONG]), None, {"prompt": LONG}, id="listed prompt"),
        pytest.param(completion(n=128, prompt=[[7] * 50_000]), None, {"prompt": [7] * 50_000}, id="token ids"),
        pytest.param(
            chat(n=128, stream=True, stream_options={"x": LONG}),
            None,
            {"stream_options": {"x": LONG, "include_usage": True}},
            id="stream_options",
        ),
        pytest.param(
            completion(n=2, prompt=["a"] * 64, choice_params=[{"stop": LONG}, {"stop": [LONG], "seed": 3}]),
            None,
            {"prompt": "a", "stop": LONG},
            id="choice_params",
        ),
        pytest.param(
            chat(n=128, messages=MESSAGES),
            MORE,
            {"messages": [*MESSAGES, {"role": "assistant", "content": MORE.text}]},
            id="a chat goes on",
        ),
        pytest.param(
            chat(n=128, messages=BEGUN),
            MORE,
            {"messages": [BEGUN[0], {**BEGUN[1], "content": LONG + MORE.text}]},
            id="a message goes on",
        ),
        pytest.param(
            chat(n=128, messages=BEGUN, **FLAGS),
            FLAGGED,
            {"messages": [BEGUN[0], {**BEGUN[1], "content": LONG + MORE.text}], **FLAGS},
            id="a message goes on as the client asked",
        ),
        pytest.param(completion(n=128, prompt=LONG), MORE, {"prompt": LONG + MORE.text}, id="a prompt goes on"),
        pytest.param(
            completion(n=128, prompt=[LONG]), MORE, {"prompt": LONG + MORE.text}, id="a listed prompt goes on"
        ),
    ],
)
def test_legs_share_what_is_long(request_: Request, prefix: Prefix | None, sent: dict[str, Any]) -> None:
    """128 legs do not hold 128 copies of it, in whichever field it is."""
    one_by_one = replace(FANOUT, prompt_lists=False)
    legs = [replace(leg, prefix=prefix) for leg in make_plan(request_, one_by_one, drawing()).legs]
    calls = [compose(request_, one_by_one, leg) for leg in legs]
    assert len(calls) == 128 and held(calls) < 2 * 100_000 + 128 * 300
    body = json.loads(bytes(calls[0]))
    assert {name: body.get(name) for name in sent} == sent and not body.keys() & {"n", "choice_params"}
