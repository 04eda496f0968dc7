"""Log probabilities and ranks against the float64 reference."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import launch, reference
from engine.kernels.logprob_rank import logprob_rank


def _told(logits: torch.Tensor, asked: list[tuple[int, int]], drawn: list[int]) -> tuple[torch.Tensor, ...]:
    own, rank = torch.empty(len(asked)), torch.empty(len(asked), dtype=torch.int32)
    top, log = logprob_rank(logits, torch.tensor(asked), torch.tensor(drawn, dtype=torch.int32), own, rank)
    return own, rank, top, log


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("width", [16, 8192])
def test_equals_the_reference(dtype: torch.dtype, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "RANK_TOKENS", width)
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(5)) * 4
    logits[1] = logits[1].round()  # equals
    logits[2, ::2] = -torch.inf
    logits[3] -= 500
    logits = logits.to(dtype)
    asked, drawn = [(5, 0), (0, 1), (3, 2), (1, 3), (2, 1)], [17, 0, 299, 31, 4, 250]
    own, rank, top, log = _told(logits, asked, drawn)
    for i, (draw, row) in enumerate(asked):
        expected, place, _ = reference.token_logprob(logits[row], drawn[draw], 0)
        assert own[i].item() == pytest.approx(expected, abs=2e-5)
        assert rank[i].item() == place
        assert own[i] == logits[row, drawn[draw]].float() - top[i] - log[i]


def test_a_draw_without_a_token_does_no_harm() -> None:
    logits = torch.full((1, 20), torch.nan)
    assert _told(logits, [(0, 0)], [-2])[1].shape == (1,)
