"""Tokens as the CPU draws them, by frequency, and where nothing can be drawn."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from engine.batch import Draw
from engine.kernels import launch, reference
from engine.messages import Sampling
from engine.sampling.draw import draw as on_cpu
from tests.engine.kernels.drawing import drawn, sums, table


@pytest.fixture(autouse=True)
def _many_to_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes as long for 128 draws as for one."""
    monkeypatch.setattr(launch, "RACE_DRAWS", 128)


def _rows(count: int, vocabulary: int, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(3)) * spread


def _lines(count: int, **settings: Any) -> list[dict[str, Any]]:
    """Draws from the distribution of the first line."""
    return [{"same": 0, "seed": i * 7919 - 2**40, "position": 2**33 + i, **settings} for i in range(count)]


def _expected(logits: torch.Tensor, lines: list[dict[str, Any]]) -> list[int]:
    draws = [
        Draw(i, line["seed"], line["position"], Sampling(temperature=line.get("temperature", 1.0)))
        for i, line in enumerate(lines)
    ]
    return on_cpu(logits, [line.get("row", 0) for line in lines], draws)


@pytest.mark.parametrize("vocabulary", [10, 300, 1100, 5003])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.3}, {"temperature": 2.0}, {"temperature": 0.0}], ids=str)
def test_tokens_are_those_of_the_cpu(vocabulary: int, settings: dict[str, Any]) -> None:
    logits = _rows(1, vocabulary)
    lines = _lines(500, **settings)
    # Of 8,000 draws none is one of those, about 1 in 10 million, where the two best finish as good as together.
    assert drawn(logits, table(lines))[0] == _expected(logits, lines)


def test_a_real_vocabulary_in_half_precision() -> None:
    logits = _rows(2, 151_936).half()
    lines = [*_lines(40), {"row": 1, "seed": 3, "position": 7}]
    assert drawn(logits, table(lines))[0] == _expected(logits, lines)


def test_frequencies_are_the_distribution() -> None:
    logits, count = _rows(1, 300, spread=0.5), 4000
    counts = torch.bincount(torch.tensor(drawn(logits, table(_lines(count)))[0]), minlength=300)
    expected = torch.softmax(logits[0].double(), -1) * count
    assert expected.min() > 2
    # 299 degrees of freedom: four deviations.
    assert ((counts - expected) ** 2 / expected).sum() < 299 + 4 * math.sqrt(2 * 299)


def test_frequencies_of_what_is_left() -> None:
    logits, count, settings = _rows(1, 300, spread=1.0), 2000, {"top_k": 60, "top_p": 0.8, "min_p": 0.01}
    counts = torch.bincount(torch.tensor(drawn(logits, table(_lines(count, **settings)), cuts=True)[0]), minlength=300)
    kept = reference.kept_tokens(logits[0], 1.0, 0.01, 60, 0.8)
    expected = torch.where(kept, torch.softmax(logits[0].double(), -1), 0.0)
    expected *= count / expected.sum()
    assert not counts[~kept].any()
    freedom = int(kept.sum()) - 1
    assert freedom > 10
    assert ((counts - expected)[kept] ** 2 / expected[kept]).sum() < freedom + 4 * math.sqrt(2 * freedom)


def test_of_equals_greedy_takes_the_lowest() -> None:
    logits = torch.zeros(3, 700)
    logits[0, [650, 300, 301]] = 4.0
    logits[1] = -3.0
    logits[2, 5:] = -0.0
    lines = [{"row": row, "temperature": 0.0, "seed": row} for row in range(3)]
    assert drawn(logits, table(lines))[0] == [300, 0, 0]


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_p": 0.5, "min_p": 0.1}, {"top_k": 7}], ids=str)
def test_where_nothing_can_be_drawn(settings: dict[str, Any]) -> None:
    logits = _rows(4, 600)
    logits[1], logits[2, 300], logits[3, 7] = -torch.inf, torch.nan, torch.inf
    given, tokens = drawn(logits, table([{"row": row, **settings} for row in range(4)]), cuts=True)
    assert given[1:] == [-1, -2, -2]
    assert tokens == [given[0], 0, 0, 0]  # tokens that a next step can look up


def test_the_coldest_draw_is_finite() -> None:
    logits = _rows(1, 600, spread=50.0)
    lines = _lines(50, temperature=1e-5)
    assert drawn(logits, table(lines))[0] == [int(logits.argmax())] * 50


def test_a_line_that_draws_nothing_is_left_alone() -> None:
    given, tokens = drawn(_rows(1, 300), table([{"seed": 1}, {"same": -1, "row": 99}]))
    assert (given[1], tokens[1]) == (-9, -9)
    assert given[0] == drawn(_rows(1, 300), table([{"seed": 1}]))[0][0]


def test_alone_and_together_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = _rows(3, 1100)
    lines = [{"row": i % 3, "temperature": 0.5 + i % 2, "seed": i} for i in range(6)]
    best, weights = sums(logits, table(lines))
    together = drawn(logits, table(lines))[0]
    monkeypatch.setattr(launch, "RACE_DRAWS", 1)
    for i, line in enumerate(lines):
        alone = sums(logits, table([line]))
        assert torch.equal(alone[0][0], best[i])
        assert torch.equal(alone[1][0], weights[i])
        assert drawn(logits, table([line]))[0] == [together[i]]


def test_edited_rows_beside_raw_ones() -> None:
    logits, edited = _rows(2, 600).half(), _rows(2, 600).flip(1)
    lines: list[dict[str, Any]] = [{"row": ~1, "seed": 4}, {"row": 1, "seed": 4}, {"row": ~0, "temperature": 0.0}]
    expected = [
        *_expected(edited[1:], [{"seed": 4, "position": 0}]),
        *_expected(logits[1:], [{"seed": 4, "position": 0}]),
    ]
    assert drawn(logits, table(lines), edited)[0] == [*expected, int(edited[0].argmax())]
