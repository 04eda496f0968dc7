"""What is kept of responses, for whom, and what is forgotten when it is too much."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.server.endpoints.responses.turns import Turn, Turns
from nproxy.openai.errors import ApiError


def turn(number: int, previous: Turn | None = None, owner: str = "", size: int = 0) -> Turn:
    said: Any = {"id": f"msg_{number}", "type": "message"}
    asked: Any = {"id": f"in_{number}", "type": "message", "text": "x" * size}
    return Turn(owner, {"id": f"resp_{number}", "output": [said]}, (asked,), (said,), previous)


def kept(turns: Turns, *numbers: int) -> list[int]:
    found = []
    for number in numbers:
        try:
            turns.find("", f"resp_{number}")
        except ApiError:
            continue
        found.append(number)
    return found


def test_a_turn_is_the_conversation_before_it() -> None:
    first = turn(1)
    third = turn(3, turn(2, first))
    assert [item["id"] for item in third.context] == ["in_1", "msg_1", "in_2", "msg_2", "in_3"]
    assert [item["id"] for item in third.conversation][-1] == "msg_3"
    assert [item["id"] for item in first.context] == ["in_1"]


def test_nobody_sees_what_belongs_to_another_key() -> None:
    turns = Turns(10, 10_000)
    turns.keep(turn(1, owner="a"))
    assert turns.find("a", "resp_1").id == "resp_1"
    for owner, param, code in (("b", None, "response_not_found"), ("", "x", "previous_response_not_found")):
        with pytest.raises(ApiError) as missing:
            turns.find(owner, "resp_1", param)
        assert (missing.value.status, missing.value.code, missing.value.param) == (404, code, param)


def test_the_least_recently_used_goes_first() -> None:
    turns = Turns(3, 10_000)
    for number in (1, 2, 3):
        turns.keep(turn(number))
    turns.find("", "resp_1")
    turns.keep(turn(4))
    assert kept(turns, 1, 2, 3, 4) == [1, 3, 4]


def test_bytes_are_limited_and_come_back() -> None:
    turns = Turns(100, 1000)
    for number in range(20):
        turns.keep(turn(number, size=100))
        assert turns.bytes <= 1000
    assert 3 < len(turns) < 10
    before = (len(turns), turns.bytes)
    turns.keep(turn(99, size=2000))
    assert (len(turns), turns.bytes) == before, "it is more than there is room for, and nothing makes way"


def test_a_chain_that_outgrows_everything_displaces_nothing() -> None:
    turns = Turns(100, 1000)
    turns.keep(turn(0, owner="a"))
    last = None
    for number in range(1, 10):
        turns.keep(last := turn(number, last, size=100))
    assert kept(turns, *range(1, 10)) == [1, 2, 3, 4], "the newest have no room"
    assert turns.find("a", "resp_0")


def test_a_chain_of_more_turns_than_are_listed_keeps_its_newest() -> None:
    turns = Turns(3, 100_000)
    last = None
    for number in range(1, 10):
        turns.keep(last := turn(number, last))
    assert kept(turns, *range(1, 10)) == [7, 8, 9]


@pytest.mark.parametrize("size", [0, 100])
def test_who_keeps_most_loses_first(size: int) -> None:
    """By number or by bytes: `a` has used its own least recently, and keeps it."""
    turns = Turns(5, 1000)
    turns.keep(turn(0, owner="a"))
    for number in range(1, 30):
        turns.keep(turn(number, owner="b", size=size))
    assert turns.find("a", "resp_0")
    assert turns.find("b", "resp_29")
    with pytest.raises(ApiError):
        turns.find("b", "resp_1")


def test_what_is_gone_on_from_lives_while_it_is_needed() -> None:
    turns = Turns(100, 100_000)
    first = turn(1)
    turns.keep(first)
    one = turns.bytes
    second = turn(2, first)
    turns.keep(second)
    turns.forget(first)
    assert kept(turns, 1, 2) == [2]
    assert turns.bytes == 2 * one
    assert [item["id"] for item in second.conversation] == ["in_1", "msg_1", "in_2", "msg_2"]
    turns.forget(second)
    assert turns.bytes == 0


def test_a_turn_that_was_forgotten_while_it_was_gone_on_from_counts_again() -> None:
    turns = Turns(100, 100_000)
    first = turn(1)
    turns.keep(first)
    one = turns.bytes
    turns.forget(first)
    assert turns.bytes == 0
    second = turn(2, first)
    turns.keep(second)
    assert turns.bytes == 2 * one
    turns.forget(second)
    assert turns.bytes == 0


def test_any_order_of_keeping_and_forgetting_adds_up() -> None:
    drawn = random.Random(3)
    turns = Turns(20, 4000)
    made: list[Turn] = []
    for number in range(300):
        previous = drawn.choice(made) if made and drawn.random() < 0.7 else None
        made.append(turn(number, previous, size=drawn.randrange(200)))
        turns.keep(made[-1])
        listed = {number for number in range(len(made)) if kept(turns, number)}
        held = set(listed)
        for one in listed:
            before = made[one].previous
            while before is not None:
                held.add(made.index(before))
                before = before.previous
        assert turns.bytes == sum(made[one].size for one in held) <= 4000
        if listed and drawn.random() < 0.2:
            turns.forget(made[drawn.choice(sorted(listed))])
