"""An order and its prompts as groups for the core: stops, seeds, and how what is drawn is read."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from engine.messages import Add
from engine.server.answering.output import Manner
from engine.server.asking.order import Order
from engine.server.groups import groups, manners, rules
from engine.server.preparing.prompts import prepare
from engine.text.parsers.families import Families
from nproxy.openai.errors import ApiError
from tests.engine.server.letters import LETTERS, READY, chat, completion

(EOS,) = READY.eos_tokens
TOOL = {"type": "function", "function": {"name": "f"}}


def adds(order: Order, random: Random | None = None, **more: Any) -> tuple[Add, ...]:
    return groups(order, prepare(order, LETTERS, READY), READY, random or Random(1), **more)


def seeds(order: Order, random: Random | None = None) -> list[list[int]]:
    return [[choice.seed for choice in add.choices] for add in adds(order, random)]


def manner(order: Order) -> Manner:
    ((only,),) = manners(order, prepare(order, LETTERS, READY), LETTERS.table)
    return only


@pytest.mark.parametrize(("fields", "stops"), [({}, {5, EOS}), ({"ignore_eos": True}, {5})])
def test_the_models_own_end_is_a_stop_unless_it_is_to_be_ignored(fields: dict[str, Any], stops: set[int]) -> None:
    (add,) = adds(chat(stop_token_ids=[5], **fields))
    assert add.stop_tokens == stops


def test_what_is_held_to_a_form_cannot_ignore_its_end() -> None:
    order = chat(ignore_eos=True, response_format={"type": "json_object"})
    with pytest.raises(ApiError, match="'ignore_eos' cannot be used together with 'response_format'") as refused:
        adds(order)
    assert (refused.value.status, refused.value.param) == (400, "ignore_eos")


def test_B_each_choice_has_the_next_seed_and_every_prompt_the_same_ones() -> None:
    assert seeds(completion(prompt=["a", "b"], n=3, seed=7)) == [[7, 8, 9]] * 2
    assert seeds(chat(n=2, seed=0)) == [[0, 1]]
    top = 2**63 - 1
    assert seeds(completion(n=2, seed=top)) == [[top, -(2**63)]]


def test_without_a_seed_every_prompt_draws_its_own() -> None:
    like = Random(3)
    expected = [[first, first + 1] for first in (like.getrandbits(31), like.getrandbits(31))]
    assert seeds(completion(prompt=["a", "b"], n=2), Random(3)) == expected


def test_a_choices_own_seed_comes_first_and_minus_one_is_a_random_one() -> None:
    own = [{}, {"seed": 40}, {"seed": -1}]
    ((first, second, third),) = seeds(chat(n=3, seed=7, choice_params=own), Random(3))
    assert (first, second, third) == (7, 40, Random(3).getrandbits(31))


def test_groups_are_numbered_and_carry_what_all_of_them_share() -> None:
    both = adds(completion(prompt=["a", "b"]), salt="s", adapter="pirate")
    assert [(add.group, add.salt, add.adapter) for add in both] == [(0, "s", "pirate"), (1, "s", "pirate")]
    assert [add.prompt for add in both] == [LETTERS.encode("a"), LETTERS.encode("b")]


@pytest.mark.parametrize(
    ("order", "names"),
    [
        (chat(logit_bias={"5": -100}), ()),
        (chat(min_tokens=2, bad_words=["x"], allowed_token_ids=[5]), ("allowed_token_ids", "bad_words", "min_tokens")),
        (chat(min_tokens=2, response_format={"type": "json_object"}), ("min_tokens", "response_format")),
        (chat(tools=[TOOL], tool_choice="required", regex="a"), ("tool_choice",)),
        (chat(tools=[TOOL], regex="a"), ("regex",)),
        (chat(n=2, choice_params=[{}, {"min_tokens": 2}]), ("choice_params.1.min_tokens",)),
        (completion(prompt=["a", "b"], structured_outputs={"regex": "a"}), ("structured_outputs",)),
    ],
)
def test_the_fields_that_exclude_tokens_are_named(order: Order, names: tuple[str, ...]) -> None:
    tokenizer = replace(LETTERS, families=Families(tools="json"))
    assert rules(order, prepare(order, tokenizer, replace(READY, max_model_len=1000))) == names


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (chat(), {"silent": False, "reports": False, "echo": "", "prompt": ()}),
        (chat(logprobs=True), {"reports": True, "prompt": ()}),
        (chat(return_token_ids=True), {"reports": True}),
        (completion(echo=True, max_tokens=0), {"silent": True, "echo": "hi", "reports": False, "prompt": ()}),
        (completion(echo=True, logprobs=0), {"silent": False, "echo": "hi", "prompt": LETTERS.encode("hi")}),
        (completion(logprobs=0), {"reports": True, "echo": "", "prompt": ()}),
        (chat(skip_special_tokens=False), {"shown": LETTERS.table.special}),
        (chat(stop="x", include_stop_str_in_output=True, min_tokens=2), {"keep_stop": True, "min_tokens": 2}),
    ],
)
def test_how_what_is_drawn_is_read(order: Order, expected: dict[str, Any]) -> None:
    read = manner(order)
    assert {name: getattr(read, name) for name in expected} == expected
