"""Drawing tokens: against a float64 reference, by frequency, at the edges, and whoever else is in the batch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers.generation import logits_process as theirs

from engine.batch import Draw
from engine.kernels import reference
from engine.messages import Sampling
from engine.sampling import draw as sampler
from engine.sampling.philox import exponentials

PLAIN = Draw(sequence=0, seed=1, position=1, sampling=Sampling())


def _kind(draw: Draw) -> tuple[float, float, int, float]:
    sampling = draw.sampling
    return sampling.temperature, sampling.min_p, sampling.top_k, sampling.top_p


def _draws(count: int, **settings: Any) -> list[Draw]:
    return [replace(PLAIN, seed=i, sampling=Sampling(**settings)) for i in range(count)]


def _rows(count: int, vocabulary: int, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


def _expected(row: torch.Tensor, draw: Draw) -> int:
    """The token that the plain reference draws with the same random numbers."""
    kept = reference.kept_tokens(row, *_kind(draw))
    weights = torch.softmax(row.double() / draw.sampling.temperature, -1) * kept
    place = torch.tensor([draw.seed]), torch.tensor([draw.position])
    among_blocks, inside = (numbers[0] for numbers in exponentials(*place, (-(-len(row) // 256), 256)))
    return reference.race(weights, 256, among_blocks, inside)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"top_k": 5},
    {"top_k": 300},
    {"top_p": 0.9},
    {"top_p": 0.3, "temperature": 0.7},
    {"top_k": 40, "top_p": 0.8, "temperature": 1.3},
    {"top_k": 10_000, "top_p": 0.999},
    {"top_p": 0.97, "temperature": 50.0},
    {"min_p": 0.05},
    {"min_p": 0.3, "temperature": 2.0},
    {"min_p": 0.001, "top_k": 30, "top_p": 0.9},
    {"min_p": 0.02, "top_p": 0.99, "temperature": 0.8},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("vocabulary", [10, 256, 1000, 5003])
def test_equals_the_reference(settings: dict[str, Any], vocabulary: int) -> None:
    logits = _rows(6, vocabulary)
    draws = _draws(60, **settings)
    rows = [i % 6 for i in range(60)]
    drawn = sampler.draw(logits, rows, draws)
    expected = [_expected(logits[row], d) for row, d in zip(rows, draws, strict=True)]
    # Two runners are as good as together about once in 10 million draws, so all 60 agree.
    assert drawn == expected


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_keeps_what_transformers_keeps(settings: dict[str, Any]) -> None:
    logits = _rows(5, 1000)
    expected = logits / settings.get("temperature", 1.0)
    if "min_p" in settings:
        expected = theirs.MinPLogitsWarper(settings["min_p"])(None, expected)
    if "top_k" in settings:
        expected = theirs.TopKLogitsWarper(settings["top_k"])(None, expected)
    if "top_p" in settings:
        expected = theirs.TopPLogitsWarper(settings["top_p"])(None, expected)
    ours = sampler._weights(logits, [sampler.Kind(row, **settings) for row in range(5)])[:, :1000]
    assert torch.equal(ours > 0, expected > -torch.inf)
    torch.testing.assert_close(ours / ours.sum(-1, keepdim=True), expected.softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_never_draws_what_is_cut_off(dtype: torch.dtype) -> None:
    logits = _rows(1, 4096).to(dtype)
    for settings in SETTINGS[3:]:
        draws = _draws(300, **settings)
        kept = reference.kept_tokens(logits[0].float(), *_kind(draws[0]))
        assert all(kept[token] for token in sampler.draw(logits, [0] * 300, draws))


def test_frequencies_are_the_distribution() -> None:
    logits = _rows(1, 600, spread=0.5)
    count = 30_000
    drawn = torch.tensor(sampler.draw(logits, [0] * count, _draws(count)))
    expected = torch.softmax(logits[0].double(), -1) * count
    counts = torch.bincount(drawn, minlength=600)
    assert expected.min() > 5
    # 599 degrees of freedom: mean 599, deviation 34.6; four deviations.
    assert ((counts - expected) ** 2 / expected).sum() < 738


def test_frequencies_over_positions_of_one_seed() -> None:
    logits = _rows(1, 40, spread=1.0)
    count = 10_000
    draws = [replace(PLAIN, seed=99, position=i) for i in range(count)]
    counts = torch.bincount(torch.tensor(sampler.draw(logits, [0] * count, draws)), minlength=40)
    expected = torch.softmax(logits[0].double(), -1) * count
    assert ((counts - expected) ** 2 / expected).sum() < 39 + 4 * math.sqrt(2 * 39)


def test_alone_and_in_a_batch_bit_for_bit() -> None:
    # Every mixture of settings in one batch; then each draw by itself, and the batch in reverse.
    logits = _rows(40, 3001)
    draws = [replace(PLAIN, seed=i, position=7 * i, sampling=Sampling(**SETTINGS[i % 14])) for i in range(40)]
    together = sampler.draw(logits, list(range(40)), draws)
    assert together == [sampler.draw(logits[i : i + 1], [0], [draws[i]])[0] for i in range(40)]
    assert together == sampler.draw(logits.flip(0), list(range(40)), draws[::-1])[::-1]


@pytest.mark.parametrize("kind", SETTINGS, ids=str)
def test_weights_alone_and_in_a_batch_bit_for_bit(kind: dict[str, Any]) -> None:
    logits = _rows(33, 49_152)
    together = sampler._weights(logits, [sampler.Kind(i, **kind) for i in range(33)])
    alone = sampler._weights(logits[20:21], [sampler.Kind(0, **kind)])
    assert torch.equal(together[20], alone[0])
    assert torch.equal(together.view(33, -1, 256).sum(-1)[20], alone.view(1, -1, 256).sum(-1)[0])


def test_draws_of_one_row_share_it() -> None:
    logits = _rows(2, 500)
    shared = sampler.draw(logits, [1] * 8, _draws(8))
    assert shared == sampler.draw(logits[[1] * 8], list(range(8)), _draws(8))
    assert len(set(shared)) > 1


def test_greedy() -> None:
    logits = _rows(3, 500)
    best = logits.argmax(-1).tolist()
    for settings in ({"temperature": 0.0}, {"temperature": 1e-9}, {"top_k": 1, "temperature": 5.0}):
        assert sampler.draw(logits, [0, 1, 2], _draws(3, **settings)) == best
        assert sampler.draw(logits, [2], _draws(1, **settings)) == best[2:]
    mixed = sampler.draw(logits, [0, 1, 2], [*_draws(2, temperature=0.0), PLAIN])
    assert mixed == [*best[:2], *sampler.draw(logits, [2], [PLAIN])]


def test_greedy_takes_the_first_of_equals() -> None:
    logits = torch.zeros(1, 700)
    logits[0, [300, 301, 650]] = 2.0
    assert sampler.draw(logits, [0], _draws(1, temperature=0.0)) == [300]


@pytest.mark.parametrize("top_p", [0.0, 1e-30, 1e-6])
def test_a_tiny_top_p_leaves_the_likeliest(top_p: float) -> None:
    logits = _rows(4, 900)
    assert sampler.draw(logits, [0, 1, 2, 3], _draws(4, top_p=top_p)) == logits.argmax(-1).tolist()


def test_a_huge_temperature_is_uniform() -> None:
    logits = _rows(1, 512)
    drawn = torch.tensor(sampler.draw(logits, [0] * 10_000, _draws(10_000, temperature=1e30)))
    counts = torch.bincount(drawn, minlength=512).double()
    expected = 10_000 / 512
    assert ((counts - expected) ** 2 / expected).sum() < 511 + 4 * math.sqrt(2 * 511)


def test_a_small_temperature_does_not_overflow() -> None:
    logits = _rows(1, 512, spread=1000.0)
    assert sampler.draw(logits, [0], _draws(1, temperature=2e-5)) == [int(logits.argmax())]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_minus_infinity_is_never_drawn(settings: dict[str, Any]) -> None:
    logits = torch.full((1, 1500), -torch.inf)
    allowed = {3, 255, 256, 1499}
    logits[0, sorted(allowed)] = torch.tensor([0.5, 0.0, 1.0, 0.2])
    drawn = set(sampler.draw(logits, [0] * 400, _draws(400, **settings)))
    assert drawn <= allowed
    if settings.get("top_p", 1.0) > 0.95 and not settings.get("min_p"):
        assert drawn == allowed


def test_one_possible_token() -> None:
    logits = torch.full((1, 257), -torch.inf)
    logits[0, 256] = -1e30
    for settings in SETTINGS:
        assert sampler.draw(logits, [0], _draws(1, **settings)) == [256]


def test_rounding_in_the_logits_seldom_changes_the_token() -> None:
    # Flat enough that most of the probability lies on tokens of less than 1e-4; noise as fp32 rounding makes it.
    generator = torch.Generator().manual_seed(5)
    logits = _rows(4, 49_152, spread=2.0)
    noisy = logits + 4e-5 * torch.randn(logits.shape, generator=generator)
    draws = _draws(8_000)
    rows = [i % 4 for i in range(8_000)]
    there, here = sampler.draw(logits, rows, draws), sampler.draw(noisy, rows, draws)
    # About 2e-5 of the draws are that close; the inverse of the cumulative distribution changes some 50 of these.
    assert sum(a != b for a, b in zip(there, here, strict=True)) <= 2


def test_top_p_of_a_flat_distribution_sorts_it_all() -> None:
    # The likeliest 256 of 4,096 nearly equal tokens hold about 6 %: the reference keeps thousands.
    logits = _rows(3, 4096, spread=0.01)
    for row, d in enumerate(_draws(3, top_p=0.9)):
        kept = sampler._weights(logits, [sampler.Kind(row, top_p=0.9)])[0] > 0
        assert torch.equal(kept, reference.kept_tokens(logits[row], 1.0, 0.0, 0, 0.9))
        assert sampler.draw(logits, [row], [d]) == [_expected(logits[row], d)]
