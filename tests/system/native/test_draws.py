"""Draws in C against those of torch and the plain reference, with the same random numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from engine.batch import Draw, Stuck
from engine.messages import Sampling
from engine.native.build import load_kernels
from engine.native.draws import from_scores
from engine.native.logprobs import log_probabilities
from engine.sampling.draw import Kind, _weights
from engine.sampling.draw import draw as drawn_by_torch
from engine.sampling.logprobs import logprobs
from engine.sampling.philox import exponentials
from engine.sampling.sampler import Sampler

pytestmark = pytest.mark.usefixtures("_processor")

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def drawing(dtype: torch.dtype) -> Callable[[torch.Tensor, Sequence[int], Sequence[Draw]], list[int | Stuck]]:
    """Draw in C from scores of this type."""
    drawn = from_scores(load_kernels(dtype))

    def draws(scores: torch.Tensor, rows: Sequence[int], draws: Sequence[Draw]) -> list[int | Stuck]:
        tokens = drawn(scores, rows, draws)
        assert tokens is not None, "it takes this type"
        return tokens

    return draws


def scores_of(rows: int, vocab: int, dtype: torch.dtype, spread: float = 3.0) -> torch.Tensor:
    return (torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * spread).to(dtype)


def draws_of(count: int, temperature: float) -> list[Draw]:
    return [Draw(i, 31 * i - 7, 5 * i, Sampling(temperature=temperature)) for i in range(count)]


@DTYPES
@pytest.mark.parametrize("temperature", [2e-5, 0.1, 0.7, 1.0, 1.9, 100.0])
@pytest.mark.parametrize("vocab", [1, 15, 256, 257, 1000, 5003, 49_152])
def test_tokens_win_the_same_races(vocab: int, temperature: float, dtype: torch.dtype) -> None:
    """A drawn token wins its race, or ties with the winner within rounding."""
    scores, draws = scores_of(7, vocab, dtype), draws_of(40, temperature)
    rows = [i % 5 + 1 for i in range(40)]
    blocks = -(-vocab // 256)
    for row, draw, token in zip(rows, draws, drawing(dtype)(scores, rows, draws), strict=True):
        assert isinstance(token, int)
        weights = torch.zeros(blocks * 256, dtype=torch.float64)
        weights[:vocab] = torch.softmax(scores[row].double() / temperature, -1)
        weights = weights.view(blocks, 256)
        place = torch.tensor([draw.seed]), torch.tensor([draw.position])
        among_blocks, inside = (numbers[0] for numbers in exponentials(*place, (blocks, 256)))
        finished = weights.sum(-1) / among_blocks, weights[token // 256] / inside
        for race, runner in zip(finished, (token // 256, token % 256), strict=True):
            assert race[runner] >= race.max() * (1 - 1e-5)


CUTS = [
    Sampling(min_p=0.05),
    Sampling(min_p=1.0),
    Sampling(top_k=2),
    Sampling(top_k=40),
    Sampling(top_k=700, temperature=2.0),
    Sampling(top_p=1e-9),
    Sampling(top_p=0.5),
    Sampling(top_p=0.95, temperature=0.7),
    Sampling(top_p=0.999999, temperature=3.0),
    Sampling(min_p=0.02, top_k=50, top_p=0.9),
    Sampling(min_p=0.5, top_k=50, top_p=0.9),
    Sampling(top_k=60_000, top_p=0.3),
]


@DTYPES
@pytest.mark.parametrize("scored", [torch.float32, torch.bfloat16], ids=["of float32", "of bfloat16"])
@pytest.mark.parametrize("vocab", [1, 15, 257, 5003, 49_152])
def test_what_is_cut_is_what_torch_cuts(vocab: int, scored: torch.dtype, dtype: torch.dtype) -> None:
    """Equal scores stand at many edges of bfloat16: all of them stay."""
    scores, drawn = scores_of(2, vocab, scored), from_scores(load_kernels(dtype))
    for cut in CUTS:
        draws = [Draw(i, 7 * i + 1, i, cut) for i in range(300)]
        tokens = drawn(scores, [1] * 300, draws)
        if tokens is None:
            assert scored not in (torch.float32, dtype)
            return
        weights = torch.softmax(scores[1].double() / cut.temperature, -1)
        kept = _weights(scores, [Kind(1, cut.temperature, cut.min_p, cut.top_k, cut.top_p)])[0, :vocab] > 0
        edge = weights[kept].min() * (1 - 1e-5)
        assert all(isinstance(token, int) and weights[token] >= edge for token in tokens)
        theirs = drawn_by_torch(scores, [1] * 300, draws)
        assert sum(a != b for a, b in zip(tokens, theirs, strict=True)) <= 1, "but for rounding"
        if int(kept.sum()) > 1:
            assert len(set(tokens)) > 1


@DTYPES
@pytest.mark.parametrize("vocab", [1, 15, 257, 5003])
@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(temperature=9e-6), Sampling(top_k=1)])
def test_the_first_of_the_highest_is_drawn_greedily(sampling: Sampling, vocab: int, dtype: torch.dtype) -> None:
    scores = scores_of(4, vocab, dtype)
    scores[1, vocab // 2 :] = 90
    scores[2] = -90
    scores[3, :-1] = -torch.inf
    tokens = drawing(dtype)(scores, range(4), [Draw(i, i, i, sampling) for i in range(4)])
    assert tokens == [int(scores[0].float().argmax()), vocab // 2, 0, vocab - 1]


@DTYPES
@pytest.mark.parametrize("scored", [torch.float32, torch.bfloat16], ids=["of float32", "of bfloat16"])
@pytest.mark.parametrize("vocab", [1, 15, 257, 5003, 49_152])
def test_log_probabilities_are_those_of_torch(vocab: int, scored: torch.dtype, dtype: torch.dtype) -> None:
    scores = scores_of(9, vocab, scored)
    scores[3] = 1.5  # all are equal
    scores[4, : vocab // 2] = -torch.inf
    wanted = [(row % 9, (row * 7919) % vocab, count) for row, count in enumerate([0, 1, 2, 20, 300, 5, 0, 3, 20, 4, 4])]
    ours = log_probabilities(load_kernels(dtype))(scores, wanted)
    for mine, theirs in zip(ours, logprobs(scores, wanted), strict=True):
        assert mine.rank == theirs.rank
        assert mine.own == pytest.approx(theirs.own, rel=2e-6, abs=2e-6)
        assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]
        assert [value for _, value in mine.top] == pytest.approx([value for _, value in theirs.top], rel=2e-6, abs=2e-6)
    assert log_probabilities(load_kernels(dtype))(scores[8:], [(0, *wanted[8][1:])]) == [ours[8]], "it is of its row"


@DTYPES
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_row_has_no_log_probabilities(value: float, dtype: torch.dtype) -> None:
    scores = scores_of(3, 300, dtype)
    scores[1, 7] = value
    scores[2] = torch.nan
    sound, broken, nothing = log_probabilities(load_kernels(dtype))(scores, [(0, 3, 2), (1, 3, 2), (2, 3, 9)])
    assert sound.own < 0
    assert math.isnan(broken.own)
    assert math.isnan(nothing.own)
    assert all(0 <= token < 300 for token, _ in (*broken.top, *nothing.top))


@DTYPES
def test_a_token_beyond_the_vocabulary_is_an_error(dtype: torch.dtype) -> None:
    with pytest.raises(IndexError):
        log_probabilities(load_kernels(dtype))(scores_of(2, 300, dtype), [(0, 3, 0), (1, 300, 0)])


@DTYPES
def test_draws_from_one_distribution_are_those_of_each_alone(dtype: torch.dtype) -> None:
    scores, drawn = scores_of(2, 2000, dtype), drawing(dtype)
    kinds = [Sampling(top_p=0.9), Sampling(top_p=0.9), Sampling(temperature=0), Sampling(top_p=0.9), Sampling(top_k=3)]
    draws = [Draw(i, i, 9, kinds[i % 5]) for i in range(60)]
    rows = [i // 7 % 2 for i in range(60)]
    assert drawn(scores, rows, draws) == [drawn(scores, [rows[i]], [draws[i]])[0] for i in range(60)]


@DTYPES
@pytest.mark.parametrize("sampling", [Sampling(top_p=0.5), Sampling(top_k=2000)])
def test_the_time_of_an_edge_does_not_depend_on_the_order(sampling: Sampling, dtype: torch.dtype) -> None:
    """Scores that rise and fall, and that rise twice, which take quicksort's pivots by surprise."""
    half = torch.linspace(0, 3, 76_000)
    scores = torch.stack(
        [torch.cat([half, half.flip(0)]), torch.cat([half, half]), torch.cat([half, half])[torch.randperm(152_000)]]
    )
    drawn, taken = drawing(dtype), []
    for row in (0, 1, 2):
        began = time.process_time()
        drawn(scores, [row] * 4, [Draw(i, i, i, replace(sampling, temperature=1 + i / 10)) for i in range(4)])
        taken.append(time.process_time() - began)
    assert max(taken) < 20 * taken[2] + 0.1


@DTYPES
def test_a_draw_does_not_depend_on_those_beside_it(dtype: torch.dtype) -> None:
    scores, draws = scores_of(33, 2000, dtype), draws_of(33, 1.0)
    drawn = drawing(dtype)
    together = drawn(scores, range(33), draws)
    assert together == [drawn(scores[i : i + 1], [0], [draws[i]])[0] for i in range(33)]
    assert len(set(together)) > 20


@DTYPES
def test_what_is_excluded_is_never_drawn(dtype: torch.dtype) -> None:
    """89 of 91 tokens have no probability and one has e^-80 of another's; no token without probability is drawn."""
    scores = torch.full((1, 91), -torch.inf, dtype=dtype)
    scores[0, 40], scores[0, 90] = 0, -80
    tokens = drawing(dtype)(scores, [0] * 5000, draws_of(5000, 1.0))
    assert set(tokens) == {40}
    scores[0, 90] = 0
    assert set(drawing(dtype)(scores, [0] * 500, draws_of(500, 1.0))) == {40, 90}


@DTYPES
@pytest.mark.parametrize("vocab", [20, 300])
def test_where_nothing_can_be_drawn_it_says_why(vocab: int, dtype: torch.dtype) -> None:
    scores = scores_of(6, vocab, dtype)
    scores[1, 3], scores[2, vocab - 1], scores[3, 0] = torch.nan, torch.inf, -torch.inf
    scores[4] = -torch.inf
    scores[5, vocab - 1] = torch.nan
    told = drawing(dtype)(scores, range(6), draws_of(6, 1.0))
    assert told[1] == told[2] == told[5] == "logits"
    assert told[4] == "rules"
    assert isinstance(told[0], int)
    assert isinstance(told[3], int)


@DTYPES
@pytest.mark.parametrize("other", [torch.float32, torch.bfloat16], ids=["of float32", "of bfloat16"])
def test_a_step_draws_what_torch_draws(dtype: torch.dtype, other: torch.dtype) -> None:
    """The logits have the kernels' dtype, or one that the kernels do not know.

    Plain, truncated, greedy and edited draws stand side by side; some rows have no token to draw.
    """
    kinds = [
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(temperature=0),
        Sampling(top_k=1),
        Sampling(top_k=30),
        Sampling(top_p=0.8),
        Sampling(min_p=0.1),
        Sampling(logit_bias=((3, 8.0),)),
        Sampling(allowed_tokens=(1, 2, 900)),
    ]
    scores = scores_of(45, 1000, other)
    scores[7, 7], scores[9] = torch.nan, -torch.inf
    draws = [Draw(i, i, 9, kinds[i % len(kinds)], logprobs=2 if i % 4 == 0 else None) for i in range(45)]
    ours = Sampler(from_scores=from_scores(load_kernels(dtype))).sample(scores, range(45), draws, {})
    theirs = Sampler().sample(scores, range(45), draws, {})
    assert ours == theirs
    assert theirs.stuck == {7: "logits", 9: "rules"}
