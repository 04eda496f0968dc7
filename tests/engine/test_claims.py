"""Beside a wide request that takes all there is, the others wait for a number of steps that is known beforehand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import Mock

import pytest

from engine.admission import LONG_PATIENCE, PATIENCE, Claim, giving_way
from engine.blocks import BlockPool
from engine.core import Core
from engine.messages import Abort, Add
from engine.sequence import State
from tests.engine.scheduling import LATE, Answers, add, assert_right, check, engine_of, follow
from tests.fakes.runner import expected

WIDE = add(0, 10, 64, 100)  # two full blocks of prompt, and 26 for each choice by and by: 1,666


def wide_in_a_tight_pool(blocks: int = 300, *, sequences: int = 80, cache: bool = False) -> Answers:
    """An engine whose every block the wide request holds, some of its choices being preempted already."""
    answers = Answers(engine_of(blocks, tokens=120, sequences=sequences, cache=cache))
    answers.engine.add(WIDE)
    while not answers.step().stats.preemptions:
        pass
    return answers


def waited(answers: Answers, arrived: dict[int, int]) -> list[int]:
    """Steps between a group's arrival and its first token, the latter's step included."""
    return [answers.step_of(group) - step + 1 for group, step in arrived.items()]


@pytest.mark.parametrize("cache", [False, True])
def test_N4_a_wide_request_keeps_no_single_one_out(cache: bool) -> None:
    answers = wide_in_a_tight_pool(cache=cache)
    singles = [add(group, 5, 1, 3) for group in range(1, 31)]
    arrived: dict[int, int] = {}
    for one in singles:
        arrived[one.group] = len(answers.steps)
        answers.engine.add(one)
        for _ in range(5):
            answers.step()
    before = answers.steps[-1].stats.preemptions
    assert max(waited(answers, {group: step for group, step in arrived.items() if group < 20})) <= PATIENCE + 4
    answers.finish_all()
    assert max(waited(answers, arrived)) <= PATIENCE + 4
    for one in (WIDE, *singles):
        assert_right(answers, one)
    assert before <= 64 + 2 * len(singles)


def test_many_single_ones_at_once_are_let_in_one_a_step() -> None:
    answers = wide_in_a_tight_pool()
    singles = [add(group, 5, 1, 40) for group in range(1, 21)]
    arrived = dict.fromkeys(range(1, 21), len(answers.steps))
    for one in singles:
        answers.engine.add(one)
    answers.finish_all()
    assert all(steps <= PATIENCE + 4 + place for place, steps in enumerate(waited(answers, arrived)))
    for one in (WIDE, *singles):
        assert_right(answers, one)


def test_N4_places_are_given_up_as_blocks_are() -> None:
    answers = wide_in_a_tight_pool_of_places()
    arrived = {1: len(answers.steps)}
    answers.engine.add(add(1, 5, 1, 30))
    answers.finish_all()
    assert waited(answers, arrived)[0] <= PATIENCE + 4
    stats = answers.steps[-1].stats
    assert stats.preemptions == stats.gave_way == 1
    assert_right(answers, WIDE)


def wide_in_a_tight_pool_of_places() -> Answers:
    answers = Answers(engine_of(2000, tokens=120, sequences=64))
    answers.engine.add(WIDE)
    answers.step()
    return answers


def test_who_was_let_in_is_not_preempted_for_the_growth_of_a_wider_one() -> None:
    answers = wide_in_a_tight_pool()
    single = add(1, 5, 1, 60)
    answers.engine.add(single)
    while (1, 0) not in answers.finish:
        answers.step()
        running = [sequence.group.id for sequence in answers.engine.scheduler.running]
        assert 1 in running or (1, 0) not in answers.tokens or (1, 0) in answers.finish
    answers.finish_all()
    assert_right(answers, single)
    assert_right(answers, WIDE)


def test_the_oldest_of_a_wide_request_goes_on_all_the_time() -> None:
    answers = wide_in_a_tight_pool()
    for group in range(1, 40):
        answers.engine.add(add(group, 5, 1, 8))
        done = answers.step()
        assert (0, 0) in answers.finish or any((one.group, one.choice) == (0, 0) for one in done.tokens)
    assert_right(answers.finish_all(), WIDE)


def test_nobody_claims_from_those_that_are_no_wider() -> None:
    engine = engine_of(200, sequences=4)
    answers = Answers(engine)
    for group in range(3):
        engine.add(add(group, 5, 2, 60))
    for _ in range(2 * PATIENCE):
        answers.step()
    assert (engine.scheduler.preemptions, len(engine.scheduler.queue.waiting)) == (0, 1)
    engine.add(add(9, 5, 1, 3))
    for _ in range(PATIENCE + 2):
        answers.step()
    assert {9, 0, 1} <= {group for group, _ in answers.tokens}
    assert answers.steps[-1].stats.preemptions == 1


def test_a_claim_that_cannot_be_met_costs_nobody_anything() -> None:
    engine = engine_of(40, sequences=8)
    old, wide, large = add(1, 60, 1, 50), add(2, 8, 2, 20), add(3, 80, 1, 4)
    engine.add(old)
    engine.add(wide)
    answers = Answers(engine)
    answers.step()
    engine.add(large)
    for _ in range(PATIENCE + 2):
        answers.step()
    assert answers.steps[-1].stats.preemptions == 0
    answers.finish_all()
    for one in (old, wide, large):
        assert_right(answers, one)


def test_who_waits_for_a_prompt_that_is_being_computed_claims_nothing_before_its_blocks_are_there() -> None:
    answers = Answers(engine_of(2000, tokens=13, sequences=9, cache=True))
    first = add(1, 4 * (PATIENCE + 10), 1, 4)  # a block per step, beside eight sequences and itself
    for one in (add(0, 5, 8, 100), first):
        answers.engine.add(one)
        answers.step()
    answers.engine.add(replace(first, group=2))
    while 1 not in answers.started:
        before = answers.steps[-1].stats.preemptions
        answers.step()
    assert len(answers.steps) > PATIENCE + 10
    assert before == 0
    while (2, 0) not in answers.finish:
        answers.step()
    assert answers.started[2].cached_tokens == len(first.prompt) - 4
    assert_right(answers, replace(first, group=2))


def test_what_the_claimant_shares_with_those_that_give_way_is_counted_once() -> None:
    """The single one's prompt is the answer of a choice that gives way: held until then, and cached after."""
    answers = wide_in_a_tight_pool(cache=True)
    youngest = answers.engine.scheduler.running[-1]
    prompt = (*WIDE.prompt, *youngest.output)
    answers.engine.add(follow(1, prompt, new=5))
    answers.finish_all()
    assert_right(answers, follow(1, prompt, new=5))
    assert_right(answers, WIDE)


def test_a_claim_whose_blocks_are_not_there_after_all_goes_on_waiting() -> None:
    engine = wide_in_a_tight_pool().engine
    engine.add(add(1, 5, 1, 3))
    queue = engine.scheduler.queue
    claimant = queue.waiting[-1]
    claim = Claim(claimant, claimant.width, [])
    assert not queue.meet(claim, wanted=engine.scheduler.pool.available)
    assert queue.waiting[-1] is claimant
    check(engine)
    assert queue.meet(claim, wanted=0)


def test_a_step_looks_at_no_more_claims_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them can be met: each prompt is larger than what the wide request can give."""
    engine = wide_in_a_tight_pool().engine
    for group in range(1, 301):
        engine.add(add(group, 110, 1, 3))
    for _ in range(PATIENCE + 2):
        engine.step()
    looked = Mock(wraps=engine.scheduler.pool.count_known)
    monkeypatch.setattr(engine.scheduler.pool, "count_known", looked)
    assert engine.scheduler.queue.claim(engine.scheduler.running, 10_000) is None
    assert looked.call_count == 64


@pytest.mark.parametrize("wide", [63, 200])
def test_groups_that_can_claim_nothing_do_not_hide_one_that_can(wide: int) -> None:
    answers = Answers(engine_of(4000, tokens=200, sequences=8))
    answers.engine.add(add(0, 5, 8, 40))
    answers.step()
    for group in range(1, wide + 1):
        answers.engine.add(add(group, 5, 8, 40))
    arrived = {999: len(answers.steps)}
    answers.engine.add(add(999, 5, 1, 3))
    while (999, 0) not in answers.finish:
        assert len(answers.steps) < 2 * PATIENCE
        answers.step()
    assert waited(answers, arrived) == [PATIENCE]


def narrow_load(answers: Answers, waiting: int, first: int = 100) -> list[Add]:
    """Add single requests until so many of them have not started; return those that were added."""
    missing = waiting - sum([one.group.id >= 100 for one in answers.engine.scheduler.queue.waiting])
    added = [add(first + number, 3, 1, 25 + number % 5) for number in range(missing)]
    for one in added:
        answers.engine.add(one)
    return added


@pytest.mark.parametrize("early", [None, LATE], ids=["by itself", "overlapping"])
@pytest.mark.parametrize("cache", [False, True])
def test_N4_narrow_load_beside_a_wide_request_does_not_keep_the_next_wide_one_out(
    cache: bool, early: Callable[[int], bool] | None
) -> None:
    answers = Answers(engine_of(2000, tokens=120, sequences=12, length=400, cache=cache, early=early))
    wides = [add(group, 10, 8, 300) for group in (1, 2)]
    for one in wides:
        answers.engine.add(one)
    singles: list[Add] = []
    while 2 not in answers.started:
        assert len(answers.steps) <= LONG_PATIENCE + 20
        singles += narrow_load(answers, 6, 100 + len(singles))
        answers.step()
    assert any((1, choice) not in answers.finish for choice in range(8))
    assert len(singles) > 10 * 8  # which overtook it
    answers.finish_all()
    for one in (*wides, *singles):
        assert_right(answers, one)


def test_the_choices_of_a_leader_that_started_alone_end_like_others() -> None:
    answers = Answers(engine_of(2000, tokens=24, sequences=8))
    old, young = add(1, 10, 8, 190), add(2, 40, 8, 9)
    answers.engine.add(old)
    answers.engine.add(young)
    queue = answers.engine.scheduler.queue
    queue.steps = LONG_PATIENCE  # the prompt of 40 takes steps: the leader ends during its prefill
    for _ in range(3):
        answers.step()
    (leader,) = [one for one in answers.engine.scheduler.running if one.group.id == 2]
    assert (leader.state, leader.choice) == (State.PREFILL, 0)
    answers.engine.abort(Abort(2, (0, 3)))
    while (2, 1) not in answers.tokens:
        answers.step()
    assert [one.choice for one in queue.waiting if one.group.id == 2] == [2, 4, 5, 6, 7]
    answers.engine.abort(Abort(2, (2,)))
    answers.finish_all()
    assert_right(answers, old)
    assert {choice for group, choice in answers.finish if group == 2} == {1, 4, 5, 6, 7}
    assert [answers.tokens[2, choice] for choice in (1, 7)] == [expected(young.prompt, seed, 9) for seed in (1, 7)]


def test_an_heir_has_waited_as_long_as_the_one_whose_place_it_takes() -> None:
    answers = wide_in_a_tight_pool()
    answers.engine.add(add(1, 5, 2, 3))
    came = len(answers.steps)
    for _ in range(PATIENCE // 2):
        answers.step()
    answers.engine.abort(Abort(1, (0,)))
    answers.finish_all()
    assert PATIENCE <= answers.step_of(1, 1) - came + 1 <= PATIENCE + 4


def test_the_widest_gives_way_first_and_the_oldest_last() -> None:
    engine: Core = engine_of(200, sequences=16)
    widths = {1: 2, 2: 4, 3: 1, 4: 3}
    for group, n in widths.items():
        engine.add(Add.alike(group, (group, 5, 6), n, 0, 9, add(0, 1, 1, 1).choices[0].sampling, frozenset()))
    engine.step()
    assert all(sequence.state is State.DECODE for sequence in engine.scheduler.running)
    order = [((one.group.id, one.choice), share) for one, share in giving_way(engine.scheduler.running)]
    assert order == [
        *(((2, 3), 4), ((4, 2), 3), ((2, 2), 3), ((4, 1), 2), ((2, 1), 2), ((1, 1), 2)),
        *(((4, 0), 1), ((3, 0), 1), ((2, 0), 1), ((1, 0), 1)),
    ]


def test_a_queue_beside_single_ones_costs_no_look_at_their_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(engine_of(2000, tokens=120, sequences=12))
    for group in range(13):
        answers.engine.add(add(group, 40, 1, 100))
    looks = 0
    holders = BlockPool.holders

    def counted(pool: BlockPool, block: int) -> int:
        nonlocal looks
        looks += 1
        return holders(pool, block)

    for _ in range(PATIENCE + 10):
        answers.step()
    monkeypatch.setattr(BlockPool, "holders", counted)
    answers.step()
    assert (answers.steps[-1].stats.running, answers.steps[-1].stats.waiting) == (12, 1)
    assert looks <= 12  # a row looks at the block that it writes to
