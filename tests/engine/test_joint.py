"""Scheduler and runner together: an answer does not depend on the company, the pool's size or the chunks."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from engine.batch import Batch, StepOutput
from engine.config import EngineConfig
from engine.core import Core
from engine.cpu_runner import CpuRunner
from engine.messages import Abort, Add, Ready, Sampling, Stats
from tests.fakes.tiny_models import save

SIZE = 4


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> CpuRunner:
    folder = tmp_path_factory.mktemp("tiny")
    save(folder)
    return CpuRunner.load(EngineConfig(str(folder), dtype="float32", num_blocks=400, block_size=SIZE))


@dataclass(frozen=True)
class Part:
    """A runner of which only the first blocks are used."""

    runner: CpuRunner
    ready: Ready

    overlaps = False

    def submit(self, batch: Batch) -> StepOutput:
        return self.runner.submit(batch)


def core(runner: CpuRunner, *, blocks: int | None = None, tokens: int = 256, cache: bool = True) -> Core:
    """An engine of its own over the first blocks of a runner."""
    config = EngineConfig(
        "",
        block_size=runner.ready.block_size,
        max_batch_tokens=tokens,
        max_sequences=16,
        share_gate=16,
        prefix_cache=cache,
    )
    return Core(config, Part(runner, replace(runner.ready, blocks=blocks or runner.ready.blocks)))


def answers(
    runner: CpuRunner,
    adds: list[Add],
    *,
    blocks: int | None = None,
    tokens: int = 256,
    every: int = 0,
    cache: bool = True,
) -> tuple[dict[tuple[int, int], list[int]], Stats]:
    """Every choice's tokens. `every`: steps between the groups' arrivals (0: all at once)."""
    engine = core(runner, blocks=blocks, tokens=tokens, cache=cache)
    drawn: dict[tuple[int, int], list[int]] = defaultdict(list)
    waiting = list(reversed(adds))
    while waiting or engine.has_work:
        if waiting:
            engine.add(waiting.pop())
        for _ in range(every or (0 if waiting else 1)):
            done = engine.step()
            assert not done.failed
            for token in done.tokens:
                drawn[token.group, token.choice].append(token.token)
    assert engine.stats().blocks_used == 0
    return drawn, engine.stats()


def group(number: int, prompt: int, n: int, new: int, seed: int, vocab: int = 97) -> Add:
    tokens = tuple(random.Random(number).choices(range(3, vocab), k=prompt))
    return Add.alike(number, tokens, n, seed, new, Sampling(), frozenset({2}))


def singles(adds: list[Add]) -> dict[tuple[int, int], Add]:
    """Each choice as a request of its own: seed + i, n = 1."""
    return {
        (one.group, number): replace(one, group=0, choices=(choice,))
        for one in adds
        for number, choice in enumerate(one.choices)
    }


TRAFFIC = [
    group(1, 37, 4, 30, 100),
    group(2, 3, 1, 40, 200),
    group(3, 64, 6, 12, 300),
    group(4, 18, 2, 25, 400),
    group(5, 41, 3, 33, 500),
]


@pytest.fixture(scope="module")
def alone(tiny: CpuRunner) -> dict[tuple[int, int], list[int]]:
    """What every choice of TRAFFIC is when it is asked for by itself."""
    return {key: answers(tiny, [one])[0][0, 0] for key, one in singles(TRAFFIC).items()}


def test_choices_equal_singles_alone(tiny: CpuRunner, alone: dict[tuple[int, int], list[int]]) -> None:
    for one in TRAFFIC:
        together, stats = answers(tiny, [one])
        assert together == {key: tokens for key, tokens in alone.items() if key[0] == one.group}
        assert stats.prompt_tokens_computed == len(one.prompt)
        assert len({tuple(tokens) for tokens in together.values()}) == len(one.choices)


@pytest.mark.parametrize("tokens", [20, 33, 256])
@pytest.mark.parametrize("every", [0, 1, 3])
def test_choices_equal_singles_beside_other_traffic(
    tiny: CpuRunner, alone: dict[tuple[int, int], list[int]], tokens: int, every: int
) -> None:
    together, stats = answers(tiny, TRAFFIC, tokens=tokens, every=every)
    assert together == alone
    assert stats.preemptions == 0
    assert 0 < stats.prefix_kv_bytes_read < stats.kv_bytes_read < stats.kv_bytes_unshared


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("blocks", [23, 29, 36])
def test_choices_equal_singles_when_they_are_preempted(
    tiny: CpuRunner, alone: dict[tuple[int, int], list[int]], blocks: int, cache: bool
) -> None:
    together, stats = answers(tiny, TRAFFIC, blocks=blocks, tokens=24, every=1, cache=cache)
    assert together == alone
    assert stats.preemptions > 2
    assert stats.peak_blocks <= blocks


def test_turns_of_a_chat_answer_as_if_all_was_computed_anew(tiny: CpuRunner) -> None:
    engine, history = core(tiny), group(1, 90, 1, 1, 0).prompt
    turns: list[Add] = []
    drawn: dict[tuple[int, int], list[int]] = defaultdict(list)
    for turn in range(4):
        turns.append(replace(group(turn, 1, 3, 20, turn * 10), prompt=history, stop_tokens=frozenset()))
        known = engine.stats().prefix_cache_hits
        engine.add(turns[turn])
        while engine.has_work:
            for token in engine.step().tokens:
                drawn[token.group, token.choice].append(token.token)
        # Of the turn before: its prompt, its answer but for the newest token, and no part of a block.
        assert engine.stats().prefix_cache_hits - known == (0 if turn == 0 else (len(history) - 8) // SIZE * SIZE)
        history = (*history, *drawn[turn, 1], 7, 8, 9, 10, 11, 12, 13)
    for one in turns:  # afterwards: all engines here write to the same blocks
        anew = answers(tiny, [one], cache=False)[0]
        assert {key: tokens for key, tokens in drawn.items() if key[0] == one.group} == anew


def mixed(count: int, seed: int) -> list[Add]:
    """Requests of 1 to 16 choices, many of which begin alike."""
    rng = random.Random(seed)
    beginnings = [tuple(rng.choices(range(3, 97), k=40)) for _ in range(3)]
    return [
        replace(
            group(number, 1, rng.randint(1, 16), rng.randint(2, 16), number * 100),
            prompt=(*rng.choice(beginnings)[: rng.randint(0, 40)], *rng.choices(range(3, 97), k=rng.randint(1, 20))),
        )
        for number in range(count)
    ]


MIXED = mixed(64, seed=3)


@pytest.fixture(scope="module")
def undisturbed(tiny: CpuRunner) -> dict[tuple[int, int], list[int]]:
    """What every choice of MIXED is when its request is the only one."""
    return {key: tokens for one in MIXED for key, tokens in answers(tiny, [one], cache=False)[0].items()}


@pytest.mark.parametrize("cache", [False, True])
def test_64_mixed_requests_over_a_pool_too_small_for_them(
    tiny: CpuRunner, undisturbed: dict[tuple[int, int], list[int]], cache: bool
) -> None:
    together, stats = answers(tiny, MIXED, blocks=40, tokens=64, cache=cache)
    assert together == undisturbed
    assert stats.preemptions > 20
    assert (stats.prefix_cache_hits > 0) == cache
    assert (stats.blocks_used, stats.blocks_free + stats.blocks_cached) == (0, 40)


@pytest.mark.parametrize("cache", [False, True])
def test_a_random_walk(tiny: CpuRunner, undisturbed: dict[tuple[int, int], list[int]], cache: bool) -> None:
    rng = random.Random(5)
    engine, coming = core(tiny, blocks=36, tokens=40, cache=cache), MIXED[:40]
    here: list[Add] = []
    drawn: dict[tuple[int, int], list[int]] = defaultdict(list)
    aborted: set[tuple[int, int]] = set()
    while coming or engine.has_work:
        if coming and rng.random() < 0.2:
            here.append(coming.pop())
            engine.add(here[-1])
        if here and rng.random() < 0.1:
            one = rng.choice(here[-6:])
            choice = rng.randrange(len(one.choices))
            aborted.add((one.group, choice))
            engine.abort(Abort(one.group, (choice,)))
        for token in engine.step().tokens:
            drawn[token.group, token.choice].append(token.token)
    for key in [(one.group, choice) for one in here for choice in range(len(one.choices))]:
        assert drawn[key] == (undisturbed[key][: len(drawn[key])] if key in aborted else undisturbed[key])
    stats = engine.stats()
    assert stats.preemptions > 10
    assert (stats.blocks_used, stats.running, stats.waiting) == (0, 0, 0)


@pytest.mark.model
@pytest.mark.timeout(300)
def test_the_real_model_under_preemption(default_model: Path) -> None:
    runner = CpuRunner.load(EngineConfig(str(default_model), dtype="float32", num_blocks=64, block_size=16))
    # Senseless prompts, so that thousands of tokens are about equally likely, and nothing cut off.
    traffic = [group(1, 43, 3, 12, 7, vocab=40_000), group(2, 20, 2, 14, 70, vocab=40_000)]
    together, stats = answers(runner, traffic, blocks=6, tokens=32, every=2)
    assert stats.preemptions > 0
    assert together == {key: answers(runner, [one])[0][0, 0] for key, one in singles(traffic).items()}
