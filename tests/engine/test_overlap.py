"""Steps that overlap: the next one is submitted before the last one's result is taken, and nobody is told otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest

from engine.admission import PATIENCE
from engine.blocks import BlockPool
from engine.core import Core
from engine.errors import CoreFailed
from engine.messages import Abort, Add, Choice, Embed, Sampling
from engine.step_in_flight import publish
from tests.engine.scheduling import (
    LATE,
    Answers,
    add,
    assert_right,
    assert_tokens,
    check,
    engine_of,
    follow,
    run,
    vector_of,
)
from tests.engine.test_constrained import LETTERS, Deaf, make, texts
from tests.engine.test_constrained import add as constrained
from tests.fakes.late_runner import LateRunner
from tests.fakes.runner import expected

LOOKING_BACK = Sampling(repetition_penalty=1.2)
PROMPT = tuple(range(100, 130))


def runner_of(engine: Core) -> LateRunner:
    assert isinstance(engine._runner, LateRunner)
    return engine._runner


def drawn_with(one: Add, *samplings: Sampling) -> Add:
    """A group whose choices draw so."""
    choices = [replace(choice, sampling=own) for choice, own in zip(one.choices, samplings, strict=True)]
    return replace(one, choices=tuple(choices))


def ahead(first: int, last: int) -> list[tuple[str, int]]:
    """The calls of a runner that never has to wait for the host."""
    between = [call for number in range(first + 1, last + 1) for call in (("submit", number), ("result", number - 1))]
    return [("submit", first), *between, ("result", last)]


def stopping(one: Add, after: int) -> Add:
    """The same group, whose first choice ends with its token of this number."""
    token = expected(one.prompt, one.choices[0].seed, after)[-1]
    assert token not in expected(one.prompt, one.choices[0].seed, after - 1)
    return replace(one, stop_tokens=frozenset({token}))


# The device never waits


def test_no_submit_waits_for_a_result() -> None:
    engine = engine_of(early=LATE)
    run(engine, add(1, 9, 4, 50))
    assert runner_of(engine).calls == ahead(0, 49)


def test_none_does_while_others_come_and_go() -> None:
    engine = engine_of(tokens=24, early=LATE)
    engine.add(add(0, 9, 2, 190))
    answers = Answers(engine)
    for group in range(1, 40):
        engine.add(stopping(add(group, 3 * group, 2, 9, seed=group), 4))
        for _ in range(4):
            answers.step()
        engine.abort(Abort(group, (group % 3,)))
    answers.finish_all()
    calls = runner_of(engine).calls
    assert calls[: 2 * 150] == ahead(0, 190)[: 2 * 150]


def test_a_row_runs_the_token_that_is_under_way_and_none_follows_the_last() -> None:
    engine = engine_of(early=LATE)
    one = add(1, 9, 2, 5)
    assert_right(run(engine, one), one)
    prompt, *steps = runner_of(engine).given
    assert [len(chunk.draws) for chunk in prompt.chunks] == [2]
    for number, batch in enumerate(steps):
        rows = [(row.token, row.position, draw.position) for row in batch.rows if (draw := row.draw)]
        assert rows == [(None, 9 + number, 10 + number)] * 2
    assert len(steps) == 4


def test_a_runner_that_computes_at_once_has_nothing_under_way() -> None:
    engine = engine_of()
    answers = run(engine, add(1, 9, 2, 5))
    assert [len(done.tokens) for done in answers.steps] == [2] * 5


# Drawn in vain


def test_a_stop_token_leaves_a_row_under_way_that_nobody_hears_of() -> None:
    engine = engine_of(early=LATE)
    one = stopping(add(1, 9, 1, 20), 6)
    engine.add(one)
    answers = Answers(engine)
    while not answers.finish:
        done = answers.step()
    assert (done.stats.blocks_used, done.stats.running) == (0, 0)
    assert engine.has_work
    assert (answers.step().tokens, engine.has_work) == ((), False)
    assert_right(answers, one)
    assert [len(batch.draws) for batch in runner_of(engine).given] == [1] * 7
    assert engine.stats().tokens_drawn == 6


@pytest.mark.parametrize("cache", [False, True])
def test_its_blocks_are_given_out_at_once(cache: bool) -> None:
    engine = engine_of(4, early=LATE, cache=cache)
    one, next_one = stopping(add(1, 6, 1, 9), 5), add(2, 12, 1, 4)
    answers = run(engine, one, next_one)
    assert_right(answers, one)
    assert_right(answers, next_one)
    batches = runner_of(engine).given
    first = next(number for number, batch in enumerate(batches) if batch.chunks and number)
    vain = batches[first - 1].rows[0]
    assert vain.blocks[-1] in batches[first].chunks[0].blocks
    assert runner_of(engine).calls.index(("submit", first)) < runner_of(engine).calls.index(("result", first - 1))


def test_stop_tokens_are_banned_by_how_many_are_under_way_too() -> None:
    one = add(1, 9, 2, 30, stops=frozenset(range(0, 1000, 3)))
    one = drawn_with(one, Sampling(min_tokens=12), Sampling(min_tokens=1))
    assert_right(run(engine_of(early=LATE), one), one)


# Who needs the past


@pytest.mark.parametrize(
    ("sampling", "sits_out"),
    [
        (Sampling(presence_penalty=0.1), True),
        (Sampling(frequency_penalty=0.1), True),
        (LOOKING_BACK, True),
        (Sampling(bad_words=((1,), (2, 3))), True),
        (Sampling(bad_words=((1,), (2,)), logit_bias=((5, 1.0),), allowed_tokens=(1, 2, 3)), False),
        (Sampling(0.5, 7, 0.9, 0.01, min_tokens=3), False),
    ],
)
def test_only_who_looks_back_at_drawn_tokens_waits_for_them(sampling: Sampling, sits_out: bool) -> None:
    engine = engine_of(early=LATE)
    one = drawn_with(add(1, 9, 1, 6), sampling)
    assert_right(run(engine, one), one)
    tokens = [row.token for batch in runner_of(engine).given for row in batch.rows]
    assert [token is not None for token in tokens] == [sits_out] * 5


def test_a_few_sit_out_and_the_others_never_wait() -> None:
    engine = engine_of(early=LATE)
    one = drawn_with(add(1, 9, 3, 40), Sampling(), LOOKING_BACK, Sampling())
    assert_right(run(engine, one), one)
    batches = runner_of(engine).given
    assert [len(batch.rows) for batch in batches[1:7]] == [2, 3, 2, 3, 2, 3]
    assert runner_of(engine).calls[:70] == ahead(0, 40)[:70]


def test_where_most_would_sit_out_all_wait() -> None:
    engine = engine_of(early=LATE)
    one = drawn_with(add(1, 9, 3, 40), LOOKING_BACK, LOOKING_BACK, Sampling())
    assert_right(run(engine, one), one)
    batches, calls = runner_of(engine).given, runner_of(engine).calls
    assert [len(batch.rows) for batch in batches] == [0] + [3] * 39
    assert calls == [(name, number) for number in range(40) for name in ("submit", "result")]


def test_prompts_count_as_those_who_can_go_on() -> None:
    engine = engine_of(tokens=20, early=LATE)
    engine.add(drawn_with(add(1, 4, 1, 20), LOOKING_BACK))
    answers = Answers(engine)
    answers.step()
    engine.add(add(2, 100, 1, 2))
    answers.finish_all()
    batches, calls = runner_of(engine).given, runner_of(engine).calls
    assert calls[:2] == [("submit", 0), ("result", 0)]  # nobody else runs yet
    assert calls[2:12] == ahead(1, 9)[:10]
    assert [(len(batch.rows), len(batch.chunks)) for batch in batches[1:7]] == [(1, 1), (0, 1)] * 3


def test_grammars_are_followed() -> None:
    def answered(kind: type[LateRunner] | None) -> tuple[dict[tuple[int, int], str], Core]:
        core = make(kind=kind) if kind else make()
        core.add(constrained(1, LETTERS, n=2, seed=7))
        core.add(constrained(2, None, n=3, seed=3))
        return texts(core), core

    late, core = answered(LateRunner)
    assert late == answered(None)[0]
    assert any(row.token is None for batch in runner_of(core).given for row in batch.rows)


def test_a_token_against_a_grammar_leaves_no_row_behind() -> None:
    class DeafAndLate(LateRunner, Deaf):
        pass

    core = make(kind=DeafAndLate)
    core.add(constrained(1, LETTERS, n=2))
    core.add(constrained(2, None, n=2, new=5))
    failed, tokens = [], 0
    while core.has_work:
        done = core.step()
        check(core)
        failed += [one.group for one in done.failed]
        tokens += len([drawn for drawn in done.tokens if drawn.group == 2])
    assert (failed, tokens) == ([1], 10)


def test_no_failure_is_reported_of_a_choice_that_was_aborted_meanwhile() -> None:
    class DeafAndLate(LateRunner, Deaf):
        pass

    core = make(kind=DeafAndLate)
    core.add(constrained(1, LETTERS, n=2))
    core.step()
    core.abort(Abort(1))
    done = core.step()
    assert (done.failed, done.tokens, core.has_work) == ((), (), False)


# Who goes while something of his is under way


def scored(group: int, n: int) -> Add:
    return replace(follow(group, PROMPT, n, 4), prompt_logprobs=1)


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("choices", [(0,), (1,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("is_scored", [False, True])
def test_an_abort_at_any_time_changes_nothing_for_others(is_scored: bool, choices: tuple[int, ...], steps: int) -> None:
    engine = engine_of(tokens=20, cache=True, early=LATE)
    one = scored(1, 3) if is_scored else follow(1, PROMPT, 3)
    other = follow(2, PROMPT, 2, 6)
    engine.add(one)
    engine.add(other)
    answers = Answers(engine)
    for _ in range(steps):
        answers.step()
    engine.abort(Abort(1, choices))
    check(engine)
    answers.finish_all()
    for choice in range(3):
        assert_tokens(answers, one, choice)
        assert (1, choice) in answers.finish or choice in choices
    assert_right(answers, other)
    assert engine.stats().blocks_used == 0


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("prompt", [8, 10])
def test_the_prompt_of_an_aborted_leader_is_known_to_the_next_one(prompt: int, cache: bool) -> None:
    """Its last chunk is under way when it goes; what holds the blocks then are the others of its group."""
    engine = engine_of(cache=cache, early=LATE)
    one, same = follow(1, PROMPT[:prompt], 3, 9), follow(2, (*PROMPT[:prompt], 7), 1, 9)
    engine.add(one)
    answers = Answers(engine)
    answers.step()
    engine.abort(Abort(1, (0,)))
    engine.add(same)
    answers.finish_all()
    assert_tokens(answers, one, 1)
    assert_right(answers, same)
    assert answers.started[2].cached_tokens == (8 if cache else 0)


def test_a_prompt_under_way_is_waited_for() -> None:
    engine = engine_of(cache=True, early=LATE)
    engine.add(follow(1, PROMPT, 1, 9))
    answers = Answers(engine)
    answers.step()
    engine.add(follow(2, PROMPT, 1, 9))
    answers.finish_all()
    assert engine.stats().prompt_tokens_computed == 30 + 2
    assert answers.step_of(2) - answers.step_of(1) == 2


def test_choices_whose_first_tokens_are_under_way_take_one_place_each() -> None:
    engine = engine_of(sequences=10, early=LATE)
    engine.add(add(1, 9, 5, 9))
    answers = Answers(engine)
    answers.step()
    engine.add(add(2, 9, 5, 9))
    answers.finish_all()
    assert answers.step_of(2) - answers.step_of(1) == 1


def test_a_block_is_known_only_where_it_is_held_still() -> None:
    engine = engine_of(tokens=32, cache=True)
    engine.add(follow(1, PROMPT[:12], 3, 9))
    engine.step()
    pool = BlockPool(16, 4, keep=True)
    still, gone, other = engine.scheduler.running
    gone.blocks, other.blocks, still.blocks = (), pool.take(2), pool.take(3)
    before = [one.blocks for one in (gone, other, still)]
    publish(pool, [gone, other, still], still.blocks, 0, 12, computed_for=still.id)
    assert pool.find(still.keys, 3) == still.blocks
    assert [one.blocks for one in (gone, other, still)] == before
    pool.check_integrity(before)


def test_a_blocks_content_is_not_taken_for_that_of_a_sibling_that_takes_it_next() -> None:
    """The step that would have computed it for the sibling fails, so that the cache would keep the other's content.

    The choice is computed again, and ends while a piece of it is under way.
    """
    engine = engine_of(52, tokens=16, sequences=4, cache=True, early=LATE)
    answers, scheduler = Answers(engine), engine.scheduler
    engine.add(Add(0, tuple(range(500, 505)), (Choice(7, 150, Sampling()),), frozenset()))
    group = Add(1, tuple(range(9)), tuple(Choice(seed, 120, Sampling()) for seed in (9, 0, 1)), frozenset())
    engine.add(group)
    for _ in range(45):
        answers.step()
    _, again, sibling = (one for one in scheduler.running if one.group.id == 1)
    for one in (again, sibling):
        scheduler._preempt(one)
    scheduler.pool.release(scheduler.pool.take(scheduler.pool.available))  # the cache forgets them, as others need it
    while again.state.name != "PREFILL":
        answers.step()
    engine.abort(Abort(1, (1,)))
    runner = runner_of(engine)
    runner.failing_late.add(len(runner.given))
    answers.step()
    said = tuple(sibling.output)
    answers.step()
    assert answers.failed
    more = Add(2, (*group.prompt, *said[:39]), (Choice(1, 8, Sampling()),), frozenset())
    engine.add(more)
    answers.finish_all()
    assert answers.tokens[2, 0] == expected(more.prompt, 1, 8)


def test_who_gives_way_keeps_the_token_under_way() -> None:
    engine = engine_of(12, sequences=4, early=LATE)
    one = add(1, 16, 3, 24)
    answers = run(engine, one)
    assert_right(answers, one)
    assert answers.steps[-1].stats.preemptions
    assert answers.steps[-1].stats.tokens_drawn == 3 * 24 == sum(len(batch.draws) for batch in runner_of(engine).given)


def test_a_claim_is_met_while_a_step_is_under_way() -> None:
    engine = engine_of(90, tokens=120, sequences=80, early=LATE)
    wide, single = add(0, 10, 20, 60), add(1, 5, 1, 3)
    engine.add(wide)
    answers = Answers(engine)
    while not answers.step().stats.preemptions:
        pass
    arrived = len(answers.steps)
    engine.add(single)
    answers.finish_all()
    assert answers.step_of(1) - arrived <= PATIENCE + 4
    assert_right(answers, wide)
    assert_right(answers, single)


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("steps", range(5))
def test_vectors_are_reported_once_or_aborted(pooling: str, steps: int) -> None:
    engine = engine_of(tokens=20, early=LATE)
    embeds = [Embed(group, (*PROMPT, group), pooling) for group in range(2)]  # type: ignore[arg-type]
    for embed in embeds:
        engine.add(embed)
    answers = Answers(engine)
    for _ in range(steps):
        answers.step()
    engine.abort(Abort(0))
    answers.finish_all()
    assert answers.embedded[1].vector == vector_of(embeds[1])
    assert engine.stats().blocks_used == 0


# Failures


def fail(engine: Core, answers: Answers, *, refusing: Sequence[int] = (), late: Sequence[int] = ()) -> None:
    runner_of(engine).refusing, runner_of(engine).failing_late = set(refusing), set(late)
    answers.finish_all()
    assert engine.stats().blocks_used == 0


def test_a_step_that_fails_leaves_those_alone_that_are_in_the_next_one_only() -> None:
    engine = engine_of(cache=True, early=LATE)
    engine.add(follow(1, PROMPT, 2, 20))
    answers = Answers(engine)
    for _ in range(4):
        answers.step()
    same, other = follow(2, (*PROMPT, 9), 2, 20), add(3, 9, 1, 20)
    engine.add(same)
    engine.add(other)
    fail(engine, answers, late=[3])
    assert set(answers.failed) == {1}
    assert_right(answers, same)
    assert_right(answers, other)


def test_what_a_failed_step_computed_is_known_to_nobody() -> None:
    engine = engine_of(cache=True, early=LATE)
    engine.add(follow(1, PROMPT, 2, 20))
    answers = Answers(engine)
    answers.step()
    same = follow(2, PROMPT, 2, 20)
    engine.add(same)
    fail(engine, answers, late=[0])
    assert set(answers.failed) == {1}
    assert_right(answers, same)
    assert answers.started[2].cached_tokens == 0


def test_a_step_that_is_refused_ends_its_groups_and_the_one_under_way_goes_on() -> None:
    engine = engine_of(early=LATE)
    ending, going = add(1, 9, 1, 3), add(2, 9, 2, 20)
    engine.add(ending)
    engine.add(going)
    answers = Answers(engine)
    fail(engine, answers, refusing=[3])  # the last of group 1 is under way
    assert set(answers.failed) == {2}
    assert_right(answers, ending)


def test_a_failed_step_reports_no_group_that_was_aborted_meanwhile() -> None:
    engine = engine_of(early=LATE)
    engine.add(add(1, 9, 2, 5))
    engine.add(Embed(2, PROMPT, "last"))
    answers = Answers(engine)
    answers.step()
    engine.abort(Abort(1))
    engine.abort(Abort(2))
    fail(engine, answers, late=[0])
    assert (answers.failed, answers.tokens, answers.embedded) == ({}, {}, {})


def test_the_engine_gives_up_when_results_fail_in_a_row() -> None:
    engine = engine_of(early=LATE)
    runner_of(engine).failing_late = {0, 1, 2}
    with pytest.raises(CoreFailed, match="3 steps in a row failed"):
        for group in range(9):
            engine.add(add(group, 9, 1, 9))
            engine.step()


# What is reported


def test_seconds_of_steps_that_overlap_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count()
    monkeypatch.setattr("engine.core.time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    for early, expected_seconds in ((None, [1.0] * 4), (LATE, [1.0, 3.0, 2.0, 2.0, 2.0])):
        engine = engine_of(early=early)
        engine.add(add(1, 9, 2, 4))
        done = Answers(engine).finish_all().steps
        assert [one.seconds for one in done] == expected_seconds
        # The first of an engine that overlaps is only submitted; its seconds begin there.
        assert [one.batch_sequences for one in done] == [0, 1, 2, 2, 2][-len(done) :]


def test_an_engine_whose_choices_have_all_gone_takes_what_is_under_way() -> None:
    engine = engine_of(early=LATE)
    engine.add(add(1, 9, 2, 9))
    engine.step()
    engine.step()
    engine.abort(Abort(1))
    assert engine.has_work
    done = engine.step()
    assert (done.tokens, done.stats.running, done.stats.blocks_used, engine.has_work) == ((), 0, 0, False)
    assert runner_of(engine).calls == ahead(0, 1)
