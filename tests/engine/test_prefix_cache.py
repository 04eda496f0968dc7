"""Prompts that begin alike: what is found, what is computed, who shares with whom, and what goes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.blocks import BlockPool
from engine.core import Core
from engine.messages import Abort, Add, Embed
from tests.engine.scheduling import Answers, assert_right, assert_tokens, engine_of, follow, run, vector_of

SIZE = 4
PROMPT = tuple(range(100, 130))  # seven blocks of four and two tokens


def computed(engine: Core) -> int:
    """Prompt tokens computed so far."""
    return engine.stats().prompt_tokens_computed


def test_a_prompt_that_comes_again_is_computed_from_its_last_block_on() -> None:
    engine = engine_of(cache=True)
    one, again = follow(1, PROMPT), follow(2, PROMPT, 3)
    first = run(engine, one)
    assert (first.started[1].cached_tokens, computed(engine)) == (0, 30)
    second = run(engine, again)
    assert (second.started[2].cached_tokens, computed(engine)) == (28, 32)
    assert_right(first, one)
    assert_right(second, again)
    stats = engine.stats()
    assert (stats.prefix_cache_hits, stats.prefix_cache_misses) == (28, 32)


def test_a_prompt_of_whole_blocks_computes_its_last_one_because_somebody_draws_from_it() -> None:
    engine = engine_of(cache=True)
    answers = [run(engine, follow(number, PROMPT[:16], 2)) for number in range(2)]
    assert answers[1].started[1].cached_tokens == 12
    assert_right(answers[1], follow(1, PROMPT[:16], 2))
    assert engine.stats().blocks_cached == 4  # the last one, computed twice, is kept once


def test_the_next_turn_of_a_chat_pays_for_what_is_new() -> None:
    engine = engine_of(cache=True)
    history = PROMPT
    for turn in range(4):
        one = follow(turn, (*history, 7, 8, 9), new=9)
        before = computed(engine)
        answers = run(engine, one)
        assert_right(answers, one)
        known = 0 if turn == 0 else (len(history) - 1) // SIZE * SIZE  # the last drawn token has no key and value yet
        assert answers.started[turn].cached_tokens == known
        assert computed(engine) - before == len(one.prompt) - known
        history = (*one.prompt, *answers.tokens[turn, 0])


def test_prompts_share_what_they_have_in_common_and_no_more() -> None:
    engine = engine_of(cache=True)
    run(engine, follow(1, PROMPT))
    other = follow(2, (*PROMPT[:13], *range(500, 520)))
    answers = run(engine, other)
    assert answers.started[2].cached_tokens == 12
    assert_right(answers, other)


def test_the_same_block_after_another_past_is_another_block() -> None:
    engine = engine_of(cache=True)
    run(engine, follow(1, PROMPT))
    other = follow(2, (1, 2, 3, 4, *PROMPT[4:]))
    answers = run(engine, other)
    assert answers.started[2].cached_tokens == 0
    assert_right(answers, other)


@pytest.mark.parametrize(
    ("other", "cached"),
    [
        (follow(2, PROMPT, salt="mine"), 28),
        (follow(2, PROMPT, salt="yours"), 0),
        (follow(2, PROMPT), 0),
        (replace(follow(2, PROMPT, salt="mine"), adapter="pirate"), 0),
    ],
)
def test_only_the_same_salt_and_adapter_share(other: Add, cached: int) -> None:
    engine = engine_of(cache=True)
    run(engine, follow(1, PROMPT, salt="mine"))
    answers = run(engine, other)
    assert answers.started[2].cached_tokens == cached
    assert_right(answers, other)


# While somebody else computes it


def test_a_prompt_that_is_being_computed_is_waited_for() -> None:
    engine = engine_of(cache=True, tokens=24)
    adds = [follow(1, PROMPT), follow(2, PROMPT, 4), follow(3, (*PROMPT[:21], 1, 2, 3, 4))]
    answers = run(engine, *adds)
    for one in adds:
        assert_right(answers, one)
    assert [answers.started[group].cached_tokens for group in (1, 2, 3)] == [0, 28, 20]
    assert computed(engine) == 30 + 2 + 5


def test_who_waits_for_a_prompt_keeps_nobody_out() -> None:
    engine = engine_of(cache=True, tokens=24)
    for one in [follow(1, PROMPT * 3), follow(2, PROMPT * 3), follow(3, (1, 2, 3)), follow(4, (4, 5, 6))]:
        engine.add(one)
    answers = Answers(engine)
    answers.step()
    assert {drawn.group for drawn in answers.steps[0].tokens} == {3, 4}
    answers.finish_all()
    assert answers.started[2].cached_tokens == 88


def test_however_many_wait_for_a_prompt_they_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(cache=True, tokens=24)
    prompts = {group: (*PROMPT * 6, group) for group in range(201)}
    for group, prompt in prompts.items():
        engine.add(follow(group, prompt))
    engine.add(follow(201, (1, 2, 3)))
    looks = 0
    count_known = BlockPool.count_known

    def counted(pool: BlockPool, keys: Sequence[bytes], most: int) -> int:
        nonlocal looks
        looks += 1
        return count_known(pool, keys, most)

    monkeypatch.setattr(BlockPool, "count_known", counted)
    answers = Answers(engine)
    while 201 not in answers.started:
        looks = 0
        answers.step()
        assert looks <= 2 * 64  # of two admissions, however many wait
    assert 0 not in answers.started
    looks = 0
    answers.step()
    assert looks == 1  # all wait for the same blocks
    answers.finish_all()
    for group, prompt in prompts.items():
        assert_right(answers, follow(group, prompt))
    assert computed(engine) == 180 + 201 + 3


def test_a_prompt_that_is_aborted_midway_is_gone_on_with() -> None:
    engine = engine_of(cache=True, tokens=20)
    one = follow(2, PROMPT)
    engine.add(follow(1, PROMPT))
    engine.add(one)
    answers = Answers(engine)
    answers.step()
    assert engine.stats().waiting == 1
    engine.abort(Abort(1))
    answers.finish_all()
    assert_right(answers, one)
    assert answers.started[2].cached_tokens == 20
    assert computed(engine) == 30


def test_whose_leader_is_aborted_is_still_waited_for() -> None:
    engine = engine_of(cache=True, tokens=20)
    both, waiting = follow(1, PROMPT, 2), follow(2, PROMPT)
    engine.add(both)
    engine.add(waiting)
    answers = Answers(engine)
    answers.step()
    engine.abort(Abort(1, (0,)))
    answers.finish_all()
    assert_tokens(answers, both, 1)
    assert_right(answers, waiting)
    assert computed(engine) == 30 + 2


# Who does not read it


def test_prompt_log_probabilities_need_every_position() -> None:
    engine = engine_of(cache=True, tokens=20)
    run(engine, follow(1, PROMPT))
    one = replace(follow(2, PROMPT), prompt_logprobs=1)
    answers = run(engine, one)
    assert_right(answers, one)
    assert (answers.started[2].cached_tokens, computed(engine)) == (0, 60)
    assert run(engine, follow(3, PROMPT)).started[3].cached_tokens == 28  # nothing is kept twice, nothing lost


def test_the_mean_of_hidden_states_needs_every_position_and_the_last_does_not() -> None:
    engine = engine_of(cache=True, tokens=20)
    for number, pooling, known in [(1, "mean", 0), (2, "mean", 0), (3, "last", 28)]:
        one = Embed(number, PROMPT, "mean" if pooling == "mean" else "last")
        before = computed(engine)
        answers = run(engine, one)
        assert answers.embedded[number].vector == vector_of(one)
        assert computed(engine) - before == 30 - known


def test_what_a_failed_step_has_written_is_not_kept() -> None:
    engine = engine_of(cache=True)
    engine.add(follow(1, PROMPT))
    runner = engine._runner
    runner.failing = True  # type: ignore[attr-defined]
    assert engine.step().failed
    runner.failing = False  # type: ignore[attr-defined]
    assert engine.stats().blocks_cached == 0
    assert run(engine, follow(2, PROMPT)).started[2].cached_tokens == 0


# Room


def test_cached_blocks_make_room_for_what_comes() -> None:
    engine = engine_of(20, cache=True)
    run(engine, follow(1, PROMPT))
    assert (engine.stats().blocks_cached, engine.stats().blocks_free) == (8, 12)
    one = follow(2, tuple(range(70)), new=8)  # 20 blocks: all there are
    answers = run(engine, one)
    assert_right(answers, one)
    assert (engine.stats().preemptions, engine.stats().blocks_used) == (0, 0)


def test_the_least_recently_used_goes_first_and_its_end_before_its_beginning() -> None:
    engine = engine_of(21, cache=True)
    old, newer = tuple(range(30)), tuple(range(200, 230))
    for number, prompt in enumerate([old, newer, old]):  # so that `newer` is the older one now
        run(engine, follow(number, prompt, new=1))
    assert engine.stats().blocks_cached == 14
    run(engine, follow(5, tuple(range(700, 740)), new=1))  # ten blocks, of which seven are free
    assert run(engine, follow(6, old, new=1)).started[6].cached_tokens == 28  # and needs one more
    assert run(engine, follow(7, newer, new=1)).started[7].cached_tokens == 12


@pytest.mark.parametrize(("cache", "tokens"), [(False, 61), (True, 41)])
def test_a_preempted_sequence_finds_what_is_left_of_it(cache: bool, tokens: int) -> None:
    engine = engine_of(17, sequences=4, cache=cache)
    adds = [follow(1, PROMPT[:8], new=40), follow(2, PROMPT[8:24], new=24)]
    answers = run(engine, *adds)
    for one in adds:
        assert_right(answers, one)
    assert answers.steps[-1].stats.preemptions == 1
    batches = engine._runner.batches  # type: ignore[attr-defined]
    assert sum(len(chunk.tokens) for batch in batches for chunk in batch.chunks) == tokens


def test_a_prompt_that_is_computed_again_is_counted_once() -> None:
    engine = engine_of(17, sequences=4, cache=True)
    run(engine, follow(1, PROMPT[:8], new=40), follow(2, PROMPT[8:24], new=24))
    stats = engine.stats()
    assert (stats.preemptions, stats.prefix_cache_hits, stats.prefix_cache_misses) == (1, 0, 24)


def test_siblings_that_draw_the_same_hold_it_once() -> None:
    engine = engine_of(cache=True)
    choice = follow(1, PROMPT[:8], new=30).choices[0]
    one = replace(follow(1, PROMPT[:8]), choices=(choice,) * 4)  # four times the same seed
    answers = run(engine, one)
    assert_right(answers, one)
    assert (
        answers.steps[-1].stats.peak_blocks <= 2 + 7 + 4
    )  # the prompt's, the drawn ones' once, and what is being written


# Off


def test_without_it_nothing_is_found_and_nothing_kept() -> None:
    engine = engine_of()
    for number in range(2):
        one = follow(number, PROMPT, 3)
        answers = run(engine, one)
        assert_right(answers, one)
        assert answers.started[number].cached_tokens == 0
    stats = engine.stats()
    assert (computed(engine), stats.blocks_cached, stats.blocks_free) == (60, 0, 256)
    assert (stats.prefix_cache_hits, stats.prefix_cache_misses) == (0, 60)


def test_without_it_two_alike_at_once_are_computed_each_for_itself() -> None:
    engine = engine_of()
    run(engine, follow(1, PROMPT), follow(2, PROMPT))
    assert computed(engine) == 60
