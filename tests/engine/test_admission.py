"""Who is let in, in which order, and who is turned away: limits, fairness, room for what is let in."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

import pytest

from engine.core import Core
from engine.messages import Abort, Add, Embed
from tests.engine.scheduling import MAX_MODEL_LEN, Answers, add, assert_right, engine_of, run, vector_of

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


def test_a_single_one_is_seen_behind_a_long_line_of_wide_ones() -> None:
    engine = engine_of()
    for group in range(60):
        engine.add(add(group, 5, 16, 20))
    engine.add(add(99, 5, 1, 3))
    engine.abort(Abort(0, (15,)))  # 15 of 16 run: the place left is too small for all others
    answers = Answers(engine)
    answers.step()
    assert {drawn.group for drawn in answers.steps[0].tokens} == {0, 99}


def test_a_narrow_request_passes_the_preempted_choices_of_a_wide_one() -> None:
    engine = engine_of(40, sequences=20)
    engine.add(add(1, 8, 12, 60))
    answers = Answers(engine)
    while len(engine.scheduler.queue.waiting) < 6:
        answers.step()
    engine.add(add(2, 5, 1, 4))
    answers.finish_all()
    first_end = next(number for number, done in enumerate(answers.steps) if any(one.finish for one in done.tokens))
    assert answers.step_of(2) < first_end  # though six choices of the other have waited since before it came
    assert answers.finish.keys() == {(1, choice) for choice in range(12)} | {(2, 0)}


def test_who_gives_way_or_has_a_token_in_flight_does_not_come_back_in_the_same_step() -> None:
    engine = engine_of()
    queue = engine.scheduler.queue
    engine.add(add(1, 5, 1, 4))
    (one,) = queue.waiting
    assert one.waiting_since == queue.steps
    assert queue.admit([]) is None
    queue.steps += 1
    one.in_flight = 1
    assert queue.admit([]) is None
    one.in_flight = 0
    assert queue.admit([]) is one


# Long prompts


def chunks_of(engine: Core) -> list[dict[int, int]]:
    """By step, how many tokens of which sequence's prompt were computed."""
    batches = engine._runner.batches  # type: ignore[attr-defined]
    return [{chunk.sequence: len(chunk.tokens) for chunk in batch.chunks} for batch in batches]


def test_a_long_prompt_keeps_nobody_out() -> None:
    engine = engine_of(tokens=24)
    engine.add(add(1, 190, 1, 4))
    answers = Answers(engine)
    answers.step()
    for group in range(2, 6):
        engine.add(add(group, 10, 1, 4))
        answers.step()
    answers.finish_all()
    waited = [answers.step_of(group) - (group - 1) for group in range(2, 6)]
    assert max(waited) <= 1
    assert answers.step_of(1) <= 190 // 8  # it got a good third of the tokens all the time


def test_the_oldest_prompt_gets_half_and_what_nobody_else_wants() -> None:
    engine = engine_of(tokens=64)
    for group, prompt in enumerate([190, 190, 190, 10]):
        engine.add(add(group, prompt, 1, 1))
    Answers(engine).finish_all()
    steps = chunks_of(engine)
    assert steps[:3] == [{0: 32 + 4, 1: 16, 2: 8, 3: 4}, {0: 32, 1: 16, 2: 8, 3: 6}, {0: 32 + 8, 1: 16, 2: 8}]
    assert all(60 < sum(step.values()) <= 64 for step in steps[:8])  # all but a part of a block is used


def test_prompts_of_one_step_go_one_after_the_other() -> None:
    engine = engine_of(tokens=64)
    for group in range(4):
        engine.add(add(group, 60, 1, 1))
    answers = Answers(engine).finish_all()
    assert [answers.step_of(group) for group in range(4)] == [0, 1, 2, 3]


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
        (add(1, MAX_MODEL_LEN, 1, 3), "the prompt has 200 tokens; the maximum is 200"),
        (add(1, 40, 15, 3), "needs 25 blocks of 4 tokens of KV cache; there are 20"),
        (add(1, 10, 1, 80), "needs 23 blocks"),
        (add(1, 0, 1, 3), "at least one token"),
        (add(1, 5, 0, 3), "one choice"),
        (add(1, 5, 1, 0), "one new token"),
        (replace(add(1, 5, 1, 3), adapter="unheard"), "there is no adapter 'unheard'"),
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


@pytest.mark.parametrize(("prompt", "message"), [(MAX_MODEL_LEN + 1, "the maximum is 200$"), (0, "at least one token")])
def test_a_prompt_to_embed_may_be_as_long_as_the_model_takes(prompt: int, message: str) -> None:
    engine = engine_of()
    engine.add(Embed(1, tuple(range(prompt)), "mean"))
    engine.add(Embed(2, tuple(range(MAX_MODEL_LEN)), "mean"))
    answers = Answers(engine).finish_all()
    assert re.search(message, answers.failed[1])
    assert list(answers.embedded) == [2]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_prompt_to_embed_may_fill_the_pool(pooling: Literal["mean", "last"]) -> None:
    engine = engine_of(20, tokens=24)
    whole, beyond = Embed(1, tuple(range(80)), pooling), Embed(2, tuple(range(81)), pooling)
    answers = run(engine, whole, beyond)
    assert answers.embedded[1].vector == vector_of(whole)
    assert "needs 21 blocks of 4 tokens of KV cache; there are 20" in answers.failed[2]


def test_tokens_beyond_the_models_length_need_no_blocks() -> None:
    one = add(1, 190, 1, 500)
    assert_right(run(engine_of(MAX_MODEL_LEN // 4), one), one, new=10)


def test_a_full_queue_turns_away_for_now() -> None:
    engine = engine_of(sequences=8, queue=4)
    for group in range(3):
        engine.add(add(group, 5, 4, 3))  # eight to run, four to wait
    engine.add(add(3, 5, 1, 3))
    engine.add(Embed(4, (1, 2), "mean"))
    answers = Answers(engine)
    failed = answers.step().failed
    assert [(one.group, one.kind) for one in failed] == [(3, "busy"), (4, "busy")]
    assert "12 sequences are already running or waiting" in failed[0].message
    answers.finish_all()
    engine.add(add(5, 5, 8, 3))
    assert_right(answers.finish_all(), add(5, 5, 8, 3))


def test_N3_the_first_of_several_groups_is_turned_away_for_those_behind_it() -> None:
    engine = engine_of(sequences=8, queue=4)
    engine.add(add(0, 5, 8, 3))
    engine.add(replace(add(1, 5, 2, 3), to_come=3))
    engine.add(replace(add(2, 5, 2, 3), to_come=2))
    answers = Answers(engine)
    failed = answers.step().failed
    assert [(one.group, one.kind) for one in failed] == [(1, "busy")]
    assert failed[0].message.endswith("there is no room for 5 more now")


def test_a_request_that_can_never_run_is_refused_in_a_full_queue_too() -> None:
    engine = engine_of(sequences=8, queue=0)
    engine.add(add(1, 5, 8, 3))
    engine.add(add(2, 5, 9, 3))
    assert [one.kind for one in engine.step().failed] == ["refused"]


def test_a_group_that_just_fits_is_served() -> None:
    one = add(1, 40, 10, 3)  # 10 blocks of prompt and 10 first ones
    assert_right(run(engine_of(20), one), one)
