"""The leg formula, for every row of its table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nproxy.choices.capability import Capability
from nproxy.choices.leg import Leg
from nproxy.choices.plan import make_plan, narrower, stretches, top_up
from nproxy.openai.errors import ApiError
from nproxy.openai.requests import Request
from tests.choices.conduct_player import EXACT, FANOUT, NATIVE, UNTESTED, chat, completion, drawing

UP_TO_4 = Capability(native_width=4)
ONE_PROMPT = Capability(native_width=1, prompt_lists=False)


@pytest.mark.parametrize(
    ("request_", "capability", "mode", "shapes"),
    [
        (chat(), FANOUT, "relay", [(0, 1, None)]),
        (chat(n=1), NATIVE, "relay", [(0, 1, None)]),
        (chat(n=8), EXACT, "relay", [(0, 8, None)]),
        (chat(n=8), NATIVE, "native", [(0, 8, None)]),
        (chat(n=3), FANOUT, "fanout", [(0, 1, None), (1, 1, None), (2, 1, None)]),
        (chat(n=10), UP_TO_4, "fanout", [(0, 4, None), (4, 4, None), (8, 2, None)]),
        (chat(n=4), UP_TO_4, "native", [(0, 4, None)]),
        (chat(n=5), UNTESTED, "native", [(0, 5, None)]),
        (completion(prompt=["a", "b", "c"], n=2), FANOUT, "fanout", [(0, 1, None), (1, 1, None)]),
        (completion(prompt=["a", "b", "c"], n=2), NATIVE, "native", [(0, 2, None)]),
        (
            completion(prompt=["a", "b"], n=2),
            ONE_PROMPT,
            "fanout",
            [(0, 1, 0), (1, 1, 0), (0, 1, 1), (1, 1, 1)],
        ),
        (completion(prompt=["a", "b"]), FANOUT, "relay", [(0, 1, None)]),
        # an answer with two choices could be one of each prompt
        (completion(prompt=["a", "b"], n=2), UNTESTED, "fanout", [(0, 2, 0), (0, 2, 1)]),
        (completion(prompt=["a", "b"]), UNTESTED, "relay", [(0, 1, None)]),
    ],
)
def test_every_row_of_the_table(
    request_: Request, capability: Capability, mode: str, shapes: list[tuple[int, int, int | None]]
) -> None:
    plan = make_plan(request_, capability, drawing())
    assert plan.way.mode == mode
    assert [(leg.offset, leg.width, leg.prompt) for leg in plan.legs] == shapes
    assert [leg.number for leg in plan.legs] == list(range(len(shapes)))


@given(
    n=st.integers(1, 20),
    prompts=st.integers(1, 4),
    width=st.one_of(st.none(), st.integers(1, 6)),
    lists=st.booleans(),
)
def test_legs_answer_for_every_index_once(n: int, prompts: int, width: int | None, lists: bool) -> None:
    request = completion(prompt=["p"] * prompts, n=n)
    plan = make_plan(request, Capability(native_width=width, prompt_lists=lists), drawing())
    covered = [index for leg in plan.legs for index in leg.client_indices(n, prompts)]
    assert sorted(covered) == list(range(n * prompts))
    assert all(leg.width <= (width or n) for leg in plan.legs)


def test_J2_prompt_major_order() -> None:
    leg = Leg(0, offset=1, width=1)
    assert [leg.client_index(j, n=2) for j in range(3)] == [1, 3, 5]
    assert Leg(0, offset=0, width=2).client_indices(2, 2) == [0, 1, 2, 3]
    assert [*Leg(0, offset=1, width=1, prompt=2).client_indices(2, 3)] == [5]


def test_A14_greedy_is_accepted_as_any_other() -> None:
    assert len(make_plan(chat(n=3, temperature=0), FANOUT, drawing()).legs) == 3


@pytest.mark.parametrize(
    ("request_", "capability", "param"),
    [
        (chat(n=2, use_beam_search=True), FANOUT, "use_beam_search"),
        (completion(n=1, best_of=3), Capability(logprobs=False), "best_of"),
        (chat(n=2, best_of=3), Capability(None, exact=True, logprobs=False), "best_of"),
    ],
    ids=["A18", "J12 n=1", "J12 n=2"],
)
def test_what_cannot_be_done_is_refused(request_: Request, capability: Capability, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        make_plan(request_, capability, drawing())
    assert (refused.value.status, refused.value.param) == (400, param)
    assert refused.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("request_", "capability"),
    [
        (chat(n=2, use_beam_search=True), NATIVE),
        (chat(use_beam_search=True), FANOUT),
        (completion(n=2, best_of=2), FANOUT),
        (completion(n=1, best_of=1), FANOUT),
    ],
)
def test_what_can_be_done_is_not(request_: Request, capability: Capability) -> None:
    make_plan(request_, capability, drawing())


def seeds(request: Request, capability: Capability = FANOUT) -> list[Any]:
    return [leg.seed for leg in make_plan(request, capability, drawing()).legs]


def test_B1_each_leg_has_the_clients_seed_and_its_offset() -> None:
    assert seeds(chat(n=3, seed=42)) == [42, 43, 44]
    assert seeds(chat(n=10, seed=42), UP_TO_4) == [42, 46, 50]


def test_B2_without_a_seed_the_legs_differ() -> None:
    assert seeds(chat(n=3)) == [1000, 1001, 1002]
    assert seeds(chat(n=3, seed=None)) == [1000, 1001, 1002]


def test_B2_equal_draws_still_differ() -> None:
    legs = make_plan(chat(n=4), FANOUT, lambda: 2**31 - 1).legs
    assert [leg.seed for leg in legs] == [2**31 - 1, 0, 1, 2]


def test_one_leg_gets_no_seed_of_ours() -> None:
    assert seeds(chat()) == [None]
    assert seeds(chat(n=4), NATIVE) == [None]


@pytest.mark.parametrize(
    ("fields", "seed"),
    [
        ({"stream": True}, 1000),
        ({"stream": True, "n": 4}, 1000),
        ({"stream": True, "seed": 5}, 5),
        ({"stream": True, "temperature": 0}, None),
        ({}, None),
    ],
)
def test_unless_a_stream_is_to_come_again_as_it_was(fields: dict[str, Any], seed: int | None) -> None:
    (leg,) = make_plan(chat(**fields), NATIVE, drawing(), replayed=True).legs
    assert leg.seed == seed
    assert make_plan(chat(stream=True), Capability(seed=False), drawing(), replayed=True).legs[0].seed is None


def test_B4_the_offset_wraps_to_int64() -> None:
    assert seeds(chat(n=2, seed=2**63 - 1)) == [2**63 - 1, -(2**63)]


def test_B5_minus_one_stays() -> None:
    assert seeds(chat(n=3, seed=-1)) == [-1, -1, -1]


def test_B6_an_upstream_without_seeds_gets_none() -> None:
    assert seeds(chat(n=3, seed=7), Capability(seed=False)) == [None, None, None]


def test_B7_every_prompt_uses_the_same_seeds() -> None:
    assert seeds(completion(prompt=["a", "b"], n=2, seed=5), ONE_PROMPT) == [5, 6, 5, 6]
    assert seeds(completion(prompt=["a", "b"], n=2, seed=5)) == [5, 6]


def test_stretches() -> None:
    assert stretches([0, 1, 2, 4, 5, 9], 2) == [range(2), range(2, 3), range(4, 6), range(9, 10)]
    assert stretches([], 3) == []


def test_narrower_legs_cover_the_refused_one() -> None:
    legs = narrower(Leg(0, offset=2, width=5, prompt=1), 2)
    assert [(leg.offset, leg.width, leg.prompt) for leg in legs] == [(2, 2, 1), (4, 2, 1), (6, 1, 1)]


@pytest.mark.parametrize(
    ("missing", "prompts", "shapes"),
    [
        ([1, 2, 3], 1, [(1, 1, None), (2, 1, None), (3, 1, None)]),
        ([2, 3, 6, 7], 2, [(2, 1, None), (3, 1, None)]),  # both prompts lack the same offsets
        ([4, 5, 6, 7], 2, [(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 1)]),  # the second prompt was ignored
        ([2, 4, 5, 6], 2, [(2, 1, 0), (0, 1, 1), (1, 1, 1), (2, 1, 1)]),  # each lacks others
    ],
)
def test_C7_top_up_brings_exactly_what_is_missing(
    missing: list[int], prompts: int, shapes: list[tuple[int, int, int | None]]
) -> None:
    legs = top_up(Leg(0, 0, 4), missing, n=4, prompts=prompts, width=1)
    assert [(leg.offset, leg.width, leg.prompt) for leg in legs] == shapes
    assert sorted(i for leg in legs for i in leg.client_indices(4, prompts)) == missing
