"""Who is let in, in which order, and who is turned away: limits, fairness, room for what is let in."""

from __future__ import annotations

import pytest

from engine.messages import Add
from tests.engine.scheduling import MAX_MODEL_LEN, Answers, add, assert_right, engine_of, run

# Fairness


def admitted(answers: Answers) -> list[int]:
    order: list[int] = []
    for done in answers.steps:
        order += [group for group in sorted({drawn.group for drawn in done.tokens}) if group not in order]
    return order


def test_first_come_first_served() -> None:
    assert admitted(run(engine_of(tokens=16, sequences=4), *(add(g, 16, 2, 5) for g in range(6)))) == list(range(6))


def test_a_narrow_request_passes_a_wide_one_that_has_to_wait() -> None:
    answers = run(engine_of(), add(1, 5, 10, 30), add(2, 5, 16, 5), add(3, 5, 1, 5))
    assert admitted(answers) == [1, 3, 2]


def test_a_wide_request_is_passed_by_no_more_sequences_than_it_has() -> None:
    narrow = [add(10 + number, 5, 1, 6 + number % 5) for number in range(60)]
    order = admitted(run(engine_of(), add(1, 5, 4, 9), add(2, 5, 16, 5), *narrow))
    assert order.index(2) <= 1 + 16


def test_streams_of_wide_requests_do_not_starve_a_single_one() -> None:
    engine = engine_of()
    answers = Answers(engine)
    for group in range(4):
        engine.add(add(group, 5, 16, 20))
    engine.add(add(99, 5, 1, 3))
    for group in range(4, 30):
        engine.add(add(group, 5, 16, 20))
    answers.finish_all()
    assert admitted(answers).index(99) <= 4


# Room


def test_a_prompt_is_let_in_only_with_a_first_block_for_every_choice() -> None:
    engine = engine_of(10, sequences=8)
    engine.add(add(1, 6, 1, 30))
    answers = Answers(engine)
    answers.step()
    assert engine.scheduler.pool.free == 8
    engine.add(add(2, 8, 6, 2))  # 2 blocks of prompt and 6 first ones: 8, and one is kept for the other group
    answers.step()
    assert len(engine.scheduler.queue.waiting) == 1
    answers.finish_all()
    assert answers.steps[-1].stats.preemptions == 0


# Refusals


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (add(1, 5, 17, 3), "n=17 is more than the 16 sequences"),
        (add(1, MAX_MODEL_LEN, 1, 3), "the prompt has 200 tokens; the model takes 200"),
        (add(1, 40, 15, 3), "needs 25 blocks of 4 tokens of KV cache; there are 20"),
        (add(1, 10, 1, 80), "needs 23 blocks"),
        (add(1, 0, 1, 3), "at least one token"),
        (add(1, 5, 0, 3), "one choice"),
        (add(1, 5, 1, 0), "one new token"),
    ],
)
def test_what_can_never_run_is_refused(one: Add, message: str) -> None:
    engine = engine_of(20)
    engine.add(one)
    assert engine.has_work
    answers = Answers(engine).finish_all()
    assert message in answers.failed[1]
    assert all(failed.kind == "refused" for done in answers.steps for failed in done.failed)
    assert not answers.tokens
    assert not engine.has_work


def test_a_group_that_just_fits_is_served() -> None:
    one = add(1, 40, 10, 3)  # 10 blocks of prompt and 10 first ones
    assert_right(run(engine_of(20), one), one)
