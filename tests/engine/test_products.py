"""Products of decode attention in deterministic mode: how many run together changes no bit of any, on any machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.attention import compute
from engine.attention.products import Apart, Together, deterministic_products
from tests.engine.test_deterministic import answers, group, load
from tests.fakes.tiny_models import save

SHAPES = [(3, 3, 64), (3, 12, 64), (1, 4, 16), (1, 3, 64), (8, 4, 128), (2, 5, 17)]
DTYPES = [torch.float32, torch.bfloat16]


def numbers(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def both(
    products: Together, q: torch.Tensor, k: torch.Tensor, items: int, heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and values of the first items, [items, K, ...]; the values are the keys themselves."""
    q, k = (x[:items].transpose(0, 1).flatten(0, 1).contiguous() for x in (q, k))
    scores = products.scores(q, k, 0.125, items)
    out = torch.empty_like(q)
    products.values(torch.softmax(scores, -1), k, items, out)
    return scores.view(heads, items, *scores.shape[1:]), out.view(heads, items, *out.shape[1:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "rows", "dim"), SHAPES)
def test_what_is_chosen_does_not_depend_on_how_many_there_are(
    heads: int, rows: int, dim: int, dtype: torch.dtype
) -> None:
    chosen = deterministic_products(dtype, [(heads, rows, dim)])
    q, k = numbers(21, heads, rows, dim, dtype=dtype), numbers(21, heads, 256, dim, dtype=dtype)
    scores, values = both(chosen, q, k, 21, heads)
    for items in range(1, 21):
        some, out = both(chosen, q, k, items, heads)
        assert torch.equal(some, scores[:, :items]), items
        assert torch.equal(out, values[:, :items]), items


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "rows", "dim"), SHAPES)
def test_apart_is_together_but_for_rounding(heads: int, rows: int, dim: int, dtype: torch.dtype) -> None:
    q, k = numbers(7, heads, rows, dim, dtype=dtype), numbers(7, heads, 128, dim, dtype=dtype)
    for mine, other in zip(both(Apart(dtype), q, k, 7, heads), both(Together(dtype), q, k, 7, heads), strict=True):
        torch.testing.assert_close(mine, other, atol=0.03 if dtype is torch.bfloat16 else 1e-5, rtol=0.02)


class _ByCompany(Together):
    """As a library may be: three products are summed in another order than more."""

    def scores(self, q: torch.Tensor, k: torch.Tensor, scale: float, items: int) -> torch.Tensor:
        if items > 1:
            return super().scores(q, k, scale, items)
        half = q.shape[-1] // 2
        return super().scores(q[..., :half], k[..., :half], scale, 1) + super().scores(
            q[..., half:], k[..., half:], scale, 1
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_where_company_matters_they_are_apart(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr("engine.attention.products.Together", _ByCompany)
    assert type(deterministic_products(dtype, [(3, 3, 64)])) is Apart


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_answers_with_products_apart_are_those_of_the_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    monkeypatch.setattr(compute, "deterministic_products", lambda dtype, shapes: Apart(dtype))
    save(tmp_path, "llama", vocab_size=1003, max_position_embeddings=700)
    runner = load(tmp_path, dtype)
    one = group(1, 150, 4, 12)
    told, _ = answers(runner, [one, group(2, 30, 2, 12)])
    assert {key: mine for key, mine in told.items() if key[0] == 1} == answers(runner, [one])[0]
