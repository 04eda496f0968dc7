"""When blocks run out: the youngest gives way, is computed again, and nothing of what it says changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.core import Core
from engine.messages import Abort, Add
from tests.engine.scheduling import LATE, Answers, add, assert_right, engine_of
from tests.fakes.runner import HashRunner, expected


def until_preempted(engine: Core, one: Add) -> Answers:
    engine.add(one)
    answers = Answers(engine)
    while not answers.step().stats.preemptions:
        pass
    return answers


def test_the_youngest_gives_way_and_the_oldest_goes_through() -> None:
    engine = engine_of(12, sequences=4)
    one = add(1, 16, 3, 24)  # 4 blocks of prompt, 3 times 6 of their own: 22 are not there
    answers = until_preempted(engine, one)
    assert [sequence.choice for sequence in engine.scheduler.queue.waiting] == [2]
    answers.finish_all()
    assert_right(answers, one)
    ends = {drawn.choice: number for number, done in enumerate(answers.steps) for drawn in done.tokens}
    assert ends[0] < ends[1] <= ends[2]


@pytest.mark.parametrize(("prompt", "again"), [(16, 0), (18, 2)])
def test_a_recomputed_choice_shares_the_prompts_full_blocks_with_its_siblings(prompt: int, again: int) -> None:
    engine = engine_of(18, sequences=4)
    one = add(1, prompt, 3, 24)
    answers = until_preempted(engine, one)
    engine.abort(Abort(1, (1,)))  # makes room, while choice 0 keeps the prompt
    answers.finish_all()
    stats = answers.steps[-1].stats
    assert (stats.preemptions, stats.gave_way) == (1, 0)
    assert stats.prompt_tokens_computed == prompt + again
    assert [answers.tokens[1, choice] for choice in (0, 2)] == [expected(one.prompt, seed, 24) for seed in (0, 2)]


@pytest.mark.parametrize("early", [None, LATE], ids=["by itself", "overlapping"])
@pytest.mark.parametrize("blocks", range(12, 40))
def test_any_pool_size_serves_a_fork_beside_growing_neighbours(
    blocks: int, early: Callable[[int], bool] | None
) -> None:
    """The fork comes some steps after its admission, and its copies must be counted exactly then."""
    engine = engine_of(blocks, tokens=12, sequences=8, early=early)
    adds = [add(1, 3, 2, 30), add(2, 22, 4, 9), add(3, 7, 3, 12)]
    engine.add(adds[0])
    answers = Answers(engine)
    answers.step()
    answers.step()
    for one in adds[1:]:
        engine.add(one)
    answers.finish_all()
    for one in adds:
        assert_right(answers, one)


def test_preempted_siblings_compute_their_prompt_once_again_and_not_each() -> None:
    engine = engine_of(22, tokens=20, sequences=4)
    old, young = add(1, 4, 1, 70), add(2, 36, 3, 25)
    engine.add(old)
    answers = Answers(engine)
    answers.step()
    engine.add(young)
    while any(sequence.group.id == 2 for sequence in engine.scheduler.running) or not answers.tokens[2, 0]:
        answers.step()
    preempted = answers.steps[-1].stats
    assert preempted.preemptions >= 3
    answers.finish_all()
    assert_right(answers, old)
    assert_right(answers, young)


def test_a_group_in_prefill_gives_way_whole() -> None:
    engine = engine_of(13, tokens=8, sequences=4)
    old, young = add(1, 8, 2, 16), add(2, 26, 2, 2)
    engine.add(old)
    answers = Answers(engine)
    answers.step()
    engine.add(young)
    answers.finish_all()
    assert_right(answers, old)
    assert_right(answers, young)


def test_a_preempted_sequence_comes_back_when_that_is_worth_its_computation() -> None:
    engine = engine_of(200, sequences=12, block_size=2)
    adds = [add(group, 6, 1, 140 + group * 3) for group in range(12)]  # there are blocks for two and a half
    for one in adds:
        engine.add(one)
    answers = Answers(engine).finish_all()
    for one in adds:
        assert_right(answers, one)
    runner = engine._runner
    assert isinstance(runner, HashRunner)
    computed = sum([len(batch.rows) + sum([len(chunk.tokens) for chunk in batch.chunks]) for batch in runner.batches])
    useful = answers.steps[-1].stats.tokens_drawn + sum([len(one.prompt) for one in adds])
    assert computed < 1.75 * useful  # and not twice as much
