"""What min-p, top-k and top-p keep: the reference's tokens exactly, ties, exclusions and edges included."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from engine.kernels import launch, reference
from tests.engine.kernels.drawing import lowest, table

SETTINGS: list[dict[str, Any]] = [
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 5},
    {"top_k": 2, "temperature": 0.2},  # of fewer than its blocks' best
    {"top_k": 300},  # more than there are blocks
    {"top_k": 10_000},  # than tokens
    {"top_p": 0.9},
    {"top_p": 0.3, "temperature": 0.7},
    {"top_p": 0.0},
    {"top_p": 0.999999},
    {"top_p": 0.97, "temperature": 50.0},
    {"top_p": 0.5, "top_k": 10_000},
    {"top_k": 40, "top_p": 0.8, "temperature": 1.3},
    {"min_p": 0.001, "top_k": 30, "top_p": 0.9},
    {"min_p": 0.02, "top_p": 0.99, "temperature": 0.8},
]


def _rows(vocabulary: int) -> torch.Tensor:
    """Rows without equals, with many, with excluded tokens, below and around 0, all alike, and with one token left."""
    generator = torch.Generator().manual_seed(vocabulary)
    rows = torch.randn(7, vocabulary, generator=generator) * 3
    rows[1] = rows[1].round()
    rows[2, torch.rand(vocabulary, generator=generator) < 0.8] = -torch.inf
    rows[3] -= 40
    rows[4] = -0.0
    rows[4, ::2] = 0.0
    rows[5, 1:] = -torch.inf
    rows[6] *= 1e-3
    return rows


def _kept(row: torch.Tensor, line: dict[str, Any]) -> torch.Tensor:
    kept = reference.kept_tokens(
        row, line.get("temperature", 1.0), line.get("min_p", 0.0), line.get("top_k", 0), line.get("top_p", 1.0)
    )
    return kept & (row > -torch.inf)  # what is excluded already has no weight to keep


@pytest.mark.parametrize(("vocabulary", "each"), [(10, 1), (700, 2)])
def test_keeps_what_the_reference_keeps(vocabulary: int, each: int) -> None:
    rows = _rows(vocabulary)
    lines = [line | {"row": (i + more) % len(rows)} for i, line in enumerate(SETTINGS) for more in range(each)]
    for line, least in zip(lines, lowest(rows, table(lines)).tolist(), strict=True):
        row = rows[line["row"]]
        assert torch.equal((row >= least) & (row > -torch.inf), _kept(row, line)), line


def test_whatever_the_tiles_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows(600)
    lines = [{"row": 0, "top_p": 0.9, "top_k": 100}, {"row": 1, "top_p": 0.6}]
    expected = lowest(rows, table(lines))
    monkeypatch.setattr(launch, "EDGE_WIDTH", 128)
    monkeypatch.setattr(launch, "CUT_BLOCKS", 2)
    assert torch.equal(lowest(rows, table(lines)), expected)


def test_edited_rows_half_precision_and_lines_that_cut_nothing() -> None:
    rows, edited = _rows(600).half(), _rows(600).flip(1)
    lines: list[dict[str, Any]] = [
        {"row": ~2, "top_p": 0.7},
        {"row": 0, "top_k": 7},
        {"row": 0},
        {"row": 0, "top_k": 7, "same": 1},
        {"row": 0, "temperature": 0.0, "top_p": 0.5},
    ]
    least = lowest(rows, table(lines), edited).tolist()
    assert torch.equal((edited[2] >= least[0]) & (edited[2] > -torch.inf), _kept(edited[2], lines[0]))
    assert torch.equal(rows[0] >= least[1], _kept(rows[0].float(), lines[1]))
    assert least[2:] == [-math.inf] * 3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rows_without_a_highest_score_are_left_alone(value: float) -> None:
    rows = _rows(600)[:1]
    rows[0, :] = value
    assert lowest(rows, table([{"top_p": 0.5}])).tolist() == [-math.inf]


def test_a_real_vocabulary() -> None:
    rows = torch.randn(1, 151_936, generator=torch.Generator().manual_seed(1)) * 2
    lines: list[dict[str, Any]] = [{"top_k": 20, "top_p": 0.95}, {"top_p": 0.9}]
    for line, least in zip(lines, lowest(rows, table(lines)).tolist(), strict=True):
        assert torch.equal(rows[0] >= least, _kept(rows[0], line))
