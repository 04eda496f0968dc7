"""Which replica takes a call: least busy for its weight, the power of two choices, homes of prompts, last resorts."""

from __future__ import annotations

import json
import random
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nproxy.config import Breaker as BreakerSettings
from nproxy.config import Health
from nproxy.openai.body import Body
from nproxy.openai.requests import Limits, parse_chat, parse_completion
from nproxy.upstreams.affinity import BOUND, LEADING, REMEMBERED, Homes, prompt_hash
from nproxy.upstreams.balancing import COMPARED, at_a_glance, choose, drawn, least_busy, standing
from nproxy.upstreams.breaker import Breaker
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.health_checks import HealthChecks
from nproxy.upstreams.overload.call_attempt import CallAttempt
from nproxy.upstreams.replica_slots import LOOK_SECONDS, ReplicaSlots
from nproxy.upstreams.replicas import Replica

SETTINGS = BreakerSettings(in_a_row=1, open=10)


def replicas(*weights: float) -> list[Replica]:
    return [
        Replica(base=f"http://r{i}/v1", socket=None, label=f"r{i}", weight=weight) for i, weight in enumerate(weights)
    ]


def low() -> float:
    return 0.0


def broken(one: Replica, now: float = 0.0, *, silent: bool = True) -> Replica:
    one.breaker = Breaker(SETTINGS)
    assert one.breaker.failed(object(), now, silent=silent)
    return one


def down(one: Replica) -> Replica:
    one.health = HealthChecks(Health(down_after=1))
    one.health.began(0.0, 0.5)
    assert one.health.ended(well=False)
    return one


def test_the_fewest_choices_for_its_weight() -> None:
    a, b, c = replicas(1, 2, 1)
    a.choices, b.choices, c.choices = 4, 6, 5
    assert least_busy([a, b, c], low) is b, "3 for a weight of 1"
    b.choices = 9
    assert least_busy([a, b, c], low) is a


def test_equals_are_drawn_by_weight() -> None:
    a, b = replicas(1, 3)
    assert [drawn([a, b], lambda at=at: at) for at in (0.0, 0.24, 0.25, 0.99)] == [a, a, b, b]  # type: ignore[misc]


def test_of_many_only_two_are_compared() -> None:
    five = replicas(1, 1, 1, 1, 1)
    for number, one in enumerate(five):
        one.choices = number
    draws = iter([0.9, 0.5, 0.0])
    assert least_busy(five, lambda: next(draws)) is five[2], "of the last and the third"
    assert least_busy(five[2:], low) is five[2], "of three, all are"


def test_two_choices_keep_many_replicas_even() -> None:
    """Balls into bins: one random choice leaves the fullest of 50 with about 17 of 500 balls, two with about 12."""
    rng = random.Random(5)
    many = replicas(*[1] * 50)
    for _ in range(500):
        least_busy(many, rng.random).choices += 1
    assert max(one.choices for one in many) <= 13


@pytest.mark.parametrize("weights", [(1, 3), (1, 1, 2), (1, 2, 3, 4, 5, 6)])
def test_calls_are_shared_by_weight(weights: tuple[float, ...]) -> None:
    rng = random.Random(5)
    some, taken, flying = replicas(*weights), Counter[str](), list[Replica]()
    for _ in range(4000):
        one = least_busy(some, rng.random)
        taken[one.label] += 1
        one.choices += 1
        flying.append(one)
        if len(flying) > 60:
            flying.pop(rng.randrange(len(flying))).choices -= 1
    for one in some:
        share = one.weight / sum(weights)
        assert abs(taken[one.label] / 4000 - share) < 0.25 * share


AT_MOST_ONE = st.floats(0, 1, exclude_max=True)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), AT_MOST_ONE, AT_MOST_ONE)
def test_a_glance_finds_whom_a_look_at_all_would_find(loads: list[int], first: float, second: float) -> None:
    some = replicas(*[1] * len(loads))
    for replica, load in zip(some, loads, strict=True):
        replica.choices = replica.legs = load
    draws = [first, second, 0.0]  # of two that are drawn and equal, the first
    chosen = choose(standing(some, None, 0.0), iter(draws).__next__, 0.0, parallel=3)
    assert at_a_glance(some, None, iter(draws).__next__, 0.0, 3) is chosen is not None


UNFIT = {
    "draining": lambda one: setattr(one, "draining", True),
    "reserved": lambda one: setattr(one, "reserved", True),
    "full": lambda one: setattr(one, "legs", 2),
    "avoided": lambda one: setattr(one, "avoid_until", 5.0),
    "resting": lambda one: one.rest(5.0, 0.0),
    "down": down,
    "broken": broken,
}


@pytest.mark.parametrize("unfit", UNFIT)
@pytest.mark.parametrize("many", range(1, 6))
def test_a_glance_at_one_that_is_not_fit_finds_nobody(many: int, unfit: str) -> None:
    some, rng = replicas(*[1] * many), random.Random(7)
    for one in some[:-1]:
        one.choices = 9
    UNFIT[unfit](some[-1])
    found = Counter(one and one.label for one in (at_a_glance(some, None, rng.random, 1.0, 2) for _ in range(200)))
    assert f"r{many - 1}" not in found
    assert found.keys() == ({None} if many <= COMPARED else {None, *(f"r{number}" for number in range(many - 1))})


def test_a_full_replica_is_passed_over_and_all_full_gives_none() -> None:
    a, b = replicas(1, 1)
    a.legs = 1
    assert choose([a, b], low, 0.0, parallel=1) is b
    b.reserved = True
    assert choose([a, b], low, 0.0, parallel=1) is None


def test_one_that_asks_to_be_left_alone_for_years_is_for_minutes() -> None:
    a, b = replicas(1, 1)
    b.choices = 9
    a.rest(1e9, 5.0)
    assert choose([a, b], low, 5.0 + 299) is b
    assert choose([a, b], low, 5.0 + 301) is a


def test_what_speaks_against_a_replica_puts_it_last_but_it_is_not_lost() -> None:
    a, b = replicas(1, 1)
    b.choices = 9
    assert choose([a, b], low, 0.0) is a
    assert choose([a, b], low, 0.0, failed={a}) is b, "the leg has failed there"
    a.resting_until = 5.0
    assert choose([a, b], low, 4.9) is b and choose([a, b], low, 5.0) is a
    b.avoid_until = 7.0
    assert choose([a, b], low, 6.0) is a
    a.health = HealthChecks(Health())
    a.health.began(0.0, 0.5)
    a.health.ended(well=False)
    assert choose([a, b], low, 8.0) is b, "its last look failed"
    assert choose([a, b], low, 8.0, failed={a, b}) is b
    assert choose([a], low, 8.0, failed={a}) is a


def test_those_in_order_are_asked_the_others_only_where_there_are_none() -> None:
    a, b, c = replicas(1, 1, 1)
    assert standing([a, broken(b), down(c)], None, 0.5) == [a]
    a.draining = True
    assert standing([a, b, c], None, 0.5) == [c], "looks may have the wrong path, calls show it; the breaker stays open"
    assert standing([a, b], None, 0.5) == [], "nobody, for a second"
    assert standing([a, b], None, 1.0) == [b], "then one request may try"
    assert standing([a, b, c], None, 1.0) == [b, c]
    assert standing([a, b, c], None, 10.0) == [b], "half open: in order"
    assert standing([a], None, 0.0) == [] and standing([], None, 0.0) == []


def test_where_a_leg_could_reach_none_in_order_the_others_are_asked_too() -> None:
    """One of them may be back, and its next check is to come."""
    a, b, c = replicas(1, 1, 1)
    down(b)
    assert standing([a, b], None, 0.5, failed={a}) == [a], "it answered, with an error"
    a.avoid_until = 5.0
    assert standing([a, b], None, 0.5) == [a], "not for legs that have not been there"
    assert standing([a, b], None, 0.5, failed={a}) == [a, b]
    assert choose(standing([a, b], None, 0.5, failed={a}), low, 0.5, failed={a}) is b
    assert standing([a, b, c], None, 0.5, failed={a}) == [a, c], "as long as there is another one"
    assert standing([a, b], None, 5.5, failed={a}) == [a]
    assert standing([a, broken(b)], None, 0.5, failed={a}) == [a], "a breaker limits that"
    assert standing([a, b], None, 1.0, failed={a}) == [a, b]


def test_one_that_answers_badly_is_asked_where_nobody_else_can_be() -> None:
    a, b, c = replicas(1, 1, 1)
    broken(a, silent=False)
    assert standing([a], None, 0.5) == [a] == standing([a, broken(b)], None, 0.5)
    assert standing([a, c], None, 0.5) == [c] == standing([a, down(c)], None, 0.5)
    a.avoid_until = 0.6
    assert standing([a], None, 0.5) == [], "it could not be reached"
    a.avoid_until, a.draining = 0.0, True
    assert standing([a], None, 0.5) == []


prompts = st.binary(min_size=1, max_size=16)


@given(st.lists(prompts, min_size=1, max_size=50), st.integers(0, 4), st.randoms())
def test_only_those_move_whose_home_left(keys: list[bytes], gone: int, rng: random.Random) -> None:
    five = replicas(1, 2, 1, 1, 1)
    left = five[:gone] + five[gone + 1 :]
    rng.shuffle(left)
    for key in keys:
        before = Homes(five).of(key)
        assert Homes(left).of(key) is before or before is five[gone]


def test_homes_are_shared_by_weight() -> None:
    some = replicas(1, 2, 5)
    all_homes = Homes(some)
    homes = Counter(all_homes.of(number.to_bytes(4)).label for number in range(4000))
    for one in some:
        assert abs(homes[one.label] / 4000 - one.weight / 8) < 0.03


@given(st.lists(prompts, min_size=1, max_size=80), st.lists(st.sampled_from((1, 2, 4)), min_size=1, max_size=6))
def test_no_home_has_much_more_than_its_share(keys: list[bytes], weights: list[float]) -> None:
    some = replicas(*weights)
    homes = Homes(some)
    for count, key in enumerate(keys, 1):
        one = homes.of(key)
        one.choices += 1
        assert one.choices < BOUND * count * one.weight / sum(weights) + 1


def test_a_home_that_is_too_busy_gives_way_to_the_same_next_one_and_is_home_again() -> None:
    three = replicas(1, 1, 1)
    homes = Homes(three)
    first = homes.of(b"p")
    first.choices = 4
    second = homes.of(b"p")
    assert second is not first and Homes([one for one in three if one is not first]).of(b"p") is second
    first.choices = 0
    assert choose(three, low, 0.0, prompt=b"p") is first
    assert choose(three, low, 0.0, prompt=b"p", failed={first}) is second


@given(
    st.lists(st.sampled_from((1, 2, 4)), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), min_size=6, max_size=6),
    st.lists(prompts, max_size=9),
)
def test_homes_at_a_glance_are_those_of_a_look_at_all(
    weights: list[float], loads: list[int], keys: list[bytes]
) -> None:
    some = tuple(replicas(*weights))
    for replica, load in zip(some, loads, strict=False):
        replica.choices = replica.legs = load
    slots = ReplicaSlots(None, low, lambda: 0.0)
    slots.replace(some)
    for key in keys:
        chosen = choose(standing(some, None, 0.0), low, 0.0, prompt=key)
        assert slots.take(CallAttempt(CallGroup(prompt=key), 0)) is chosen is not None


@pytest.mark.parametrize("unfit", [name for name in UNFIT if name != "full"])
def test_a_home_that_is_not_fit_is_none_however_it_is_looked_for(unfit: str) -> None:
    clock = SimpleNamespace(now=1.0)
    some = tuple(replicas(1, 1, 1, 1))
    slots = ReplicaSlots(None, low, lambda: clock.now)
    slots.replace(some)
    left = slots.take(CallAttempt(CallGroup(prompt=b"p"), 0))
    assert left is not None
    UNFIT[unfit](left)
    rest = [one for one in some if one is not left]
    for _ in range(3):
        assert slots.take(CallAttempt(CallGroup(prompt=b"p"), 0)) in rest
        clock.now += LOOK_SECONDS


def test_only_the_last_prompts_are_remembered() -> None:
    homes = Homes(replicas(1, 1, 1))
    first = homes.of(b"p")
    for number in range(2 * REMEMBERED):
        homes.of(number.to_bytes(4))
    assert len(homes._orders) == REMEMBERED and homes.of(b"p") is first


def chat(*messages: tuple[str, object], model: str = "m") -> bytes:
    told = [{"role": role, "content": content} for role, content in messages]
    return prompt_hash(parse_chat(Body.parse(json.dumps({"model": model, "messages": told}).encode()), Limits()))


def legacy(prompt: object) -> bytes:
    return prompt_hash(parse_completion(Body.parse(json.dumps({"model": "m", "prompt": prompt}).encode()), Limits()))


def test_all_turns_of_a_conversation_are_alike_and_others_are_not() -> None:
    first = chat(("system", "be kind"), ("user", "hello"))
    assert chat(("system", "be kind"), ("user", "hello"), ("assistant", "hi"), ("user", "and now?")) == first
    assert chat(("system", "be kind"), ("user", "good morning")) != first
    assert chat(("system", "be harsh"), ("user", "hello")) != first
    assert chat(("system", "be kind"), ("user", "hello"), model="other") != first
    assert chat(("system", "be kind"), ("user", [{"type": "text", "text": "hello"}])) != first


def test_questions_about_one_document_are_alike() -> None:
    document = "x" * LEADING
    assert chat(("user", document + "who?")) == chat(("user", document + "when?"))
    assert legacy(document + "who?") == legacy([document + "when?", "another"])
    assert legacy("who?") != legacy("when?") and legacy([1, 2]) != legacy([1, 3])
    assert legacy([1, 2]) == legacy([[1, 2], [3]])
