"""What draws need, and what a step returns besides tokens: log probabilities, scores of prompts, vectors, the start."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from engine.batch import Draw
from engine.core import Core
from engine.messages import Abort, Add, Embed, Sampling
from tests.engine.scheduling import Answers, add, assert_right, engine_of, run, vector_of

STOPS = frozenset(range(0, 1000, 3))


def draws_of(engine: Core) -> list[Draw]:
    """Every draw of every step."""
    batches = engine._runner.batches  # type: ignore[attr-defined]
    return [
        draw
        for batch in batches
        for draw in [*(one for chunk in batch.chunks for one in chunk.draws), *(row.draw for row in batch.rows)]
    ]


def with_sampling(one: Add, *sampling: Sampling) -> Add:
    """A group whose choices draw so."""
    choices = [replace(choice, sampling=own) for choice, own in zip(one.choices, sampling, strict=True)]
    return replace(one, choices=tuple(choices))


def test_stop_tokens_are_banned_until_enough_others_are_drawn() -> None:
    engine = engine_of()
    one = with_sampling(add(1, 9, 3, 30, stops=STOPS), Sampling(), Sampling(min_tokens=1), Sampling(min_tokens=12))
    answers = run(engine, one)
    assert_right(answers, one)
    assert [len(answers.tokens[1, choice]) for choice in range(3)][2] > 12
    assert {draw.position for draw in draws_of(engine) if draw.banned == STOPS} == set(range(9, 21))


def test_a_draw_has_the_past_where_it_changes_logits() -> None:
    engine = engine_of()
    one = with_sampling(add(1, 9, 2, 4), Sampling(temperature=0.5, top_k=3), Sampling(repetition_penalty=1.2))
    answers = run(engine, one)
    draws = draws_of(engine)
    assert [draw.past is not None for draw in draws] == [False, True] * 4
    last = draws[-1].past
    assert last is not None
    assert (last.prompt, list(last.output)) == (one.prompt, answers.tokens[1, 1])  # the last one drawn meanwhile


def test_log_probabilities_come_with_their_tokens_where_they_are_asked_for() -> None:
    plain, asking = add(1, 9, 2, 5), replace(add(2, 9, 3, 5), logprobs=4)
    engine = engine_of()
    answers = run(engine, plain, asking)
    assert_right(answers, plain)
    assert_right(answers, asking)
    assert {draw.logprobs for draw in draws_of(engine)} == {None, 4}


@pytest.mark.parametrize("prompt", [1, 4, 30, 33])
def test_a_prompts_log_probabilities_are_gathered_over_its_chunks(prompt: int) -> None:
    engine = engine_of(tokens=20)
    one = replace(add(1, prompt, 3, 5), prompt_logprobs=2)
    answers = run(engine, one)
    assert_right(answers, one)
    chunks = [chunk for batch in engine._runner.batches for chunk in batch.chunks]  # type: ignore[attr-defined]
    assert {chunk.prompt_logprobs for chunk in chunks} == {2}


def test_they_survive_the_leaders_end() -> None:
    engine = engine_of(tokens=20)
    one = replace(add(1, 60, 3, 5), prompt_logprobs=0)
    engine.add(one)
    answers = Answers(engine)
    answers.step()
    engine.abort(Abort(1, (0,)))
    answers.finish_all()
    scores = answers.started[1].prompt_logprobs
    assert scores is not None
    assert (scores[0], len(scores), None in scores[1:]) == (None, 60, False)


def test_they_are_gathered_anew_after_a_preemption_and_reported_once() -> None:
    engine = engine_of(23, tokens=8, sequences=4)
    olds, young = [add(1, 8, 1, 34), add(3, 8, 1, 34)], replace(add(2, 50, 2, 3), prompt_logprobs=1)
    for old in olds:
        engine.add(old)
    answers = Answers(engine)
    for _ in range(3):
        answers.step()
    engine.add(young)
    answers.finish_all()
    stats = answers.steps[-1].stats
    assert (stats.preemptions, stats.prompt_tokens_computed) == (1, 8 + 8 + 40 + 50)
    for old in olds:
        assert_right(answers, old)
    assert_right(answers, young)


def test_a_choice_that_is_preempted_later_tells_nothing_again() -> None:
    engine = engine_of(21, tokens=12, sequences=4)
    old, young = add(1, 8, 2, 24), replace(add(2, 40, 2, 30), prompt_logprobs=1)
    answers = run(engine, old, young)
    assert answers.steps[-1].stats.preemptions >= 2
    assert_right(answers, old)
    assert_right(answers, young)


def test_nor_is_anything_about_its_prompt_computed_again() -> None:
    engine = engine_of(21, tokens=12, sequences=4)
    answers = run(engine, add(1, 8, 2, 24), replace(add(2, 40, 2, 30), prompt_logprobs=1))
    assert answers.steps[-1].stats.preemptions >= 2
    chunks = [chunk for batch in engine._runner.batches for chunk in batch.chunks]  # type: ignore[attr-defined]
    assert sum(len(chunk.tokens) for chunk in chunks) > 8 + 40
    assert sum(len(chunk.next_tokens) for chunk in chunks) == 39


def test_adapters_reach_prompt_and_answer() -> None:
    engine = engine_of()
    adds = [replace(add(1, 9, 2, 8), adapter=adapter, group=group) for group, adapter in enumerate([None, "a", "b"])]
    answers = run(engine, *adds)
    for one in adds:
        assert_right(answers, one)
    assert len({tuple(answers.tokens[group, 0]) for group in range(3)}) == 3


def test_the_start_is_reported_with_the_first_tokens() -> None:
    engine = engine_of(tokens=20)
    engine.add(add(1, 50, 2, 4))
    answers = Answers(engine)
    assert [bool(answers.step().started) for _ in range(4)] == [False, False, True, False]


# Embeddings


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("prompt", [1, 16, 59])
def test_a_prompt_is_embedded_over_its_chunks_beside_others(prompt: int, pooling: Literal["mean", "last"]) -> None:
    engine = engine_of(tokens=20)
    beside, one = add(1, 9, 2, 20), Embed(2, add(2, prompt, 1, 1).prompt, pooling)
    answers = run(engine, beside, one)
    assert_right(answers, beside)
    assert answers.embedded[2].vector == vector_of(one)
    assert 2 not in answers.started
    stats = answers.steps[-1].stats
    assert (stats.prompt_tokens_computed, stats.blocks_used, stats.tokens_drawn) == (9 + prompt, 0, 40)


def test_an_embedding_is_summed_anew_after_a_preemption() -> None:
    engine = engine_of(19, tokens=8, sequences=4)
    young = Embed(2, add(2, 40, 1, 1).prompt, "mean", adapter="a")
    engine.add(add(1, 8, 1, 24))
    engine.add(add(3, 8, 1, 24))
    answers = Answers(engine)
    for _ in range(3):
        answers.step()
    engine.add(young)
    answers.finish_all()
    assert answers.steps[-1].stats.prompt_tokens_computed > 8 + 8 + 40
    assert answers.embedded[2].vector == vector_of(young)


def test_an_embedding_can_be_aborted() -> None:
    engine = engine_of(tokens=20)
    engine.add(Embed(1, add(1, 60, 1, 1).prompt, "mean"))
    answers = Answers(engine)
    answers.step()
    engine.abort(Abort(1))
    assert answers.finish_all().embedded == {}
    assert engine.stats().blocks_used == 0
