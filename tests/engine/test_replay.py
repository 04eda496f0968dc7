"""Deterministic mode in scheduling: every token is computed in the one shape and order that it has alone.

The runner here hashes into a slot how it was computed as well: in which chunk of a prompt, or as a row. So a chunk that
is cut elsewhere, a cached block of another shape, or an output recomputed in chunks changes the tokens.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from engine import chunking
from engine.batch import Batch, StepOutput
from engine.config import EngineConfig
from engine.core import Core
from engine.messages import Abort, Add, Sampling
from tests.engine.scheduling import Answers, add, follow, run
from tests.fakes.late_runner import LateRunner
from tests.fakes.runner import HashRunner, ready

SIZE = 4


class ShapeRunner(HashRunner):
    """A HashRunner whose slots depend on how they are computed."""

    def submit(self, batch: Batch) -> StepOutput:
        chunks = [replace(one, adapter=f"{one.adapter} {one.start}+{len(one.tokens)}") for one in batch.chunks]
        rows = [replace(one, adapter=f"{one.adapter} row {one.cut}") for one in batch.rows]
        return super().submit(replace(batch, chunks=tuple(chunks), rows=tuple(rows)))


class LateShapeRunner(LateRunner, ShapeRunner):  # type: ignore[misc]  # the last of them returns at once
    """The same, a step behind."""


def engine_of(
    blocks: int = 256, *, cache: bool = True, deterministic: bool = True, room: int = 12, late: bool = False
) -> Core:
    config = EngineConfig(
        "none",
        block_size=SIZE,
        max_sequences=16,
        max_batch_tokens=16 + room,
        share_gate=0,
        prefix_cache=cache,
        deterministic=deterministic,
    )
    about = ready(blocks=blocks, block_size=SIZE, max_model_len=200)
    return Core(config, LateShapeRunner(about) if late else ShapeRunner(about))


def singles(one: Add) -> list[Add]:
    """Each choice as a request of its own."""
    return [replace(one, choices=(choice,)) for choice in one.choices]


def alone(one: Add) -> list[list[int]]:
    """What each choice is when it is asked for by itself, of an engine that knows nothing yet."""
    return [run(engine_of(), single).tokens[one.group, 0] for single in singles(one)]


def assert_as_alone(answers: Answers, *adds: Add) -> None:
    assert not answers.failed
    for one in adds:
        assert [answers.tokens[one.group, choice] for choice in range(len(one.choices))] == alone(one)


def fixed_size(config: EngineConfig) -> int:
    return chunking.fixed_size(config, config.batch_tokens("cpu"))


def test_a_chunk_is_whole_blocks_and_fits_a_step() -> None:
    assert fixed_size(EngineConfig("")) == 256
    assert fixed_size(EngineConfig("", block_size=24)) == 240
    assert fixed_size(EngineConfig("", max_sequences=1000)) == 16
    assert fixed_size(EngineConfig("", block_size=512, max_sequences=8)) == 512


@pytest.mark.parametrize("prompt", [1, 3, 4, 11, 12, 13, 24, 30, 48])
def test_choices_equal_singles(prompt: int) -> None:
    one = add(1, prompt, 8, 20, seed=5)
    assert_as_alone(run(engine_of(), one), one)


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("blocks", [27, 33, 60])
def test_preempted_choices_equal_singles(blocks: int, cache: bool) -> None:
    adds = [add(1, 37, 4, 30), add(2, 3, 1, 40), add(3, 64, 6, 12), add(4, 18, 2, 25), add(5, 41, 3, 33)]
    engine = engine_of(blocks, cache=cache)
    answers = run(engine, *adds)
    assert engine.stats().preemptions > 2
    assert_as_alone(answers, *adds)


def test_a_replayed_row_draws_nothing() -> None:
    adds = [add(1, 20, 2, 30), add(2, 20, 2, 30)]
    engine = engine_of(22)
    runner = engine._runner
    assert isinstance(runner, ShapeRunner)
    answers = run(engine, *adds)
    assert engine.stats().preemptions
    replayed = sum(row.draw is None for batch in runner.batches for row in batch.rows)
    assert replayed > 5
    assert_as_alone(answers, *adds)
    assert engine.stats().tokens_drawn == 120


def test_the_default_mode_computes_otherwise_in_company() -> None:
    adds = [add(1, 37, 4, 30), add(2, 3, 1, 40), add(3, 64, 6, 12), add(4, 18, 2, 25), add(5, 41, 3, 33)]
    answers = run(engine_of(33, deterministic=False), *adds)
    assert any(
        [answers.tokens[one.group, choice] for choice in range(len(one.choices))]
        != [run(engine_of(deterministic=False), single).tokens[one.group, 0] for single in singles(one)]
        for one in adds
    )


def test_a_cached_prefix_is_used_by_whole_chunks() -> None:
    first, longer = add(1, 41, 1, 9), add(2, 60, 3, 9)
    longer = replace(longer, prompt=first.prompt + longer.prompt[41:])
    engine = engine_of()
    answers = Answers(engine)
    engine.add(first)
    answers.finish_all()
    engine.add(longer)
    answers.finish_all()
    assert answers.started[2].cached_tokens == 36
    assert_as_alone(answers, first, longer)


def test_what_decoding_wrote_is_not_cached() -> None:
    first = add(1, 20, 1, 30)
    engine = engine_of()
    answers = Answers(engine)
    engine.add(first)
    answers.finish_all()
    turn = follow(2, (*first.prompt, *answers.tokens[1, 0]), 2, 8)
    engine.add(turn)
    answers.finish_all()
    assert answers.started[2].cached_tokens == 12
    assert_as_alone(answers, first, turn)


def test_prompts_that_begin_alike_wait_for_a_whole_chunk() -> None:
    beginning = add(9, 40, 1, 1).prompt
    adds = [follow(1, (*beginning, 1, 2), 2, 6), follow(2, (*beginning, 3), 2, 6), follow(3, beginning, 1, 6)]
    engine = engine_of()
    answers = run(engine, *adds)
    assert engine.stats().prefix_cache_hits >= 72
    assert_as_alone(answers, *adds)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_random_company(seed: int, late: bool) -> None:
    rng = random.Random(seed)
    beginnings = [add(100 + number, 40, 1, 1).prompt for number in range(3)]
    adds = []
    for group in range(14):
        prompt = rng.choice(beginnings)[: rng.randrange(41)] + tuple(rng.choices(range(1000), k=rng.randrange(1, 30)))
        adds.append(
            Add.alike(group, prompt, rng.randrange(1, 7), group * 10, rng.randrange(1, 30), Sampling(), frozenset())
        )
    engine = engine_of(rng.choice([36, 44, 70]), cache=rng.random() < 0.7, room=rng.choice([12, 14]), late=late)
    answers, coming, ended = Answers(engine), list(adds), set[tuple[int, int]]()
    while coming or engine.has_work:
        if coming and (rng.random() < 0.3 or not engine.has_work):
            engine.add(coming.pop(0))
        if rng.random() < 0.03:
            one = rng.choice(adds)
            ended.add((one.group, 0))
            engine.abort(Abort(one.group, (0,)))
        answers.step()
    for one in adds:
        for choice, expected in enumerate(alone(one)):
            got = answers.tokens[one.group, choice]
            assert got == (expected[: len(got)] if (one.group, choice) in ended else expected)
