"""What the backend of a CPU computes between products: as torch computes it, and a row by itself as in company."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engine.models.ops import rms_norm

WIDTHS = (1, 7, 576, 4096, 49_999)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("eps", [1e-5, 1e-6, 0.5])
def test_the_norm_is_torchs_own(width: int, eps: float) -> None:
    noise = torch.Generator().manual_seed(width)
    x = torch.randn(9, width, generator=noise) * torch.logspace(-12, 12, 9).unsqueeze(1)
    x[3] = 0
    weight = torch.randn(width, generator=noise)
    torch.testing.assert_close(rms_norm(x, weight, eps), F.rms_norm(x, (width,), weight, eps), rtol=2e-6, atol=0)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_norm_of_a_row_does_not_depend_on_the_rows_beside_it(width: int) -> None:
    x = torch.randn(33, width, generator=torch.Generator().manual_seed(3))
    weight = torch.ones(width)
    every = rms_norm(x, weight, 1e-5)
    for rows in (1, 2, 5, 32):
        assert torch.equal(rms_norm(x[:rows], weight, 1e-5), every[:rows])
