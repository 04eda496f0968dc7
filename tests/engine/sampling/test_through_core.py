"""Edits and log probabilities through scheduler and runner: what a choice asks for follows it through forks,
chunks, preemption and company."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.core import Core
from engine.cpu_runner import CpuRunner
from engine.messages import Add, Choice, GroupFailed, Logprobs, Sampling, Started, Stats, TokenDrawn
from tests.fakes.tiny_models import save

SIZE = 4
EOS = frozenset({2})
SAMPLINGS = (
    Sampling(presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.2),
    Sampling(min_tokens=12, logit_bias=((2, 30.0),)),
    Sampling(temperature=0.0, repetition_penalty=1.5),
    Sampling(allowed_tokens=tuple(range(10, 40)), bad_words=((11,), (12, 13)), min_p=0.02),
    Sampling(),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> CpuRunner:
    folder = tmp_path_factory.mktemp("tiny")
    save(folder)
    return CpuRunner.load(EngineConfig(str(folder), dtype="float32", num_blocks=200, block_size=SIZE))


class Pool:
    """The runner with fewer blocks than it has."""

    def __init__(self, runner: CpuRunner, blocks: int) -> None:
        self.ready = replace(runner.ready, blocks=blocks)
        self.overlaps, self.submit = runner.overlaps, runner.submit


def _group(number: int, prompt: int) -> Add:
    """A request whose choices each ask for something else."""
    tokens = tuple(random.Random(number).choices(range(3, 97), k=prompt))
    choices = [Choice(100 * number + i, 20, sampling) for i, sampling in enumerate(SAMPLINGS)]
    return Add(number, tokens, tuple(choices), EOS, logprobs=number % 4, prompt_logprobs=number % 2 or None)


def _run(
    runner: CpuRunner, adds: Sequence[Add], *, blocks: int = 200, tokens: int = 256
) -> tuple[dict[tuple[int, int], list[TokenDrawn]], dict[int, Started], list[GroupFailed], Stats]:
    """All that comes of some groups, added one a step."""
    config = EngineConfig("", block_size=SIZE, max_batch_tokens=tokens, max_sequences=20, share_gate=8)
    engine = Core(config, Pool(runner, blocks))
    drawn: dict[tuple[int, int], list[TokenDrawn]] = defaultdict(list)
    started: dict[int, Started] = {}
    failed: list[GroupFailed] = []
    waiting = [*adds]
    while waiting or engine.has_work:
        if waiting:
            engine.add(waiting.pop(0))
        done = engine.step()
        for token in done.tokens:
            drawn[token.group, token.choice].append(token)
        started |= {one.group: one for one in done.started}
        failed += done.failed
    return drawn, started, failed, engine.stats()


def _own(told: Sequence[Logprobs | None]) -> list[float]:
    return [one.own for one in told if one is not None]


def test_choices_that_ask_for_different_things_equal_single_requests(tiny: CpuRunner) -> None:
    adds = [_group(number, prompt) for number, prompt in enumerate((30, 9, 21, 14))]
    together, started, failed, stats = _run(tiny, adds, blocks=44, tokens=24)
    assert (failed, stats.blocks_used) == ([], 0)
    assert stats.preemptions > 0
    for add in adds:
        for i, choice in enumerate(add.choices):
            here = together[add.group, i]
            alone, first, *_ = _run(tiny, [replace(add, choices=(choice,))])
            there = alone[add.group, 0]
            assert [(one.token, one.finish) for one in here] == [(one.token, one.finish) for one in there]
            told = [one.logprobs for one in here]
            assert [len(one.top) for one in told if one] == [add.logprobs] * len(here)
            # Rounding differs between batches of different sizes.
            assert _own(told) == pytest.approx(_own([one.logprobs for one in there]), abs=1e-4)
            scores, alone_scores = started[add.group].prompt_logprobs, first[add.group].prompt_logprobs
            assert (scores is None) == (alone_scores is None) == (add.prompt_logprobs is None)
            if scores is not None and alone_scores is not None:
                assert (len(scores), scores[0]) == (len(add.prompt), None)
                assert _own(scores) == pytest.approx(_own(alone_scores), abs=1e-4)


def test_what_is_asked_for_shows(tiny: CpuRunner) -> None:
    drawn, *_ = _run(tiny, [_group(1, 20)])
    tokens = {i: [one.token for one in drawn[1, i]] for i in range(len(SAMPLINGS))}
    assert 2 not in tokens[1][:12]
    assert (tokens[1][12:], drawn[1, 1][-1].finish) == ([2], "stop")  # its bias is all but certain, once it may be
    assert set(tokens[3]) <= {10, *range(12, 40)}


def test_a_group_without_a_token_left_fails_by_itself(tiny: CpuRunner) -> None:
    good = _group(1, 20)
    never = replace(good, group=2, choices=(Choice(5, 9, Sampling(allowed_tokens=(2,), min_tokens=3)), good.choices[0]))
    # Only 7, and never behind itself: nothing is left for the second token.
    soon = replace(good, group=3, choices=(Choice(5, 9, Sampling(allowed_tokens=(7,), bad_words=((7, 7),))),))
    undisturbed, *_ = _run(tiny, [good])
    drawn, _, failed, stats = _run(tiny, [never, good, soon])
    assert [(one.group, one.kind) for one in failed] == [(2, "unsatisfiable"), (3, "unsatisfiable")]
    assert failed[0].message.startswith("no token is left to sample")
    assert {key: [one.token for one in tokens] for key, tokens in drawn.items()} == {
        **{key: [one.token for one in tokens] for key, tokens in undisturbed.items()},
        (3, 0): [7],
    }
    assert (stats.blocks_used, stats.running) == (0, 0)
