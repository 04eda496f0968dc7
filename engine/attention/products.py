"""Batches of products: how a library sums one may depend on how many there are, and in deterministic mode must not.

Observed with oneDNN on a CPU that emulates bfloat16: given three products for two threads it splits one of them, given
six it splits none, and the order of the sums differs. So it is tested on this machine, with the shapes that decoding
will use. If the number matters, each item's products become a batch of their own, at the cost of more calls; otherwise
nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F

_ITEMS = (1, 2, 3, 5, 8, 32)  # numbers of items of a batch that are tried
_KEYS = (128, 256)  # numbers of keys of an item that are tried


class Together:
    """A bucket's products, computed for all items at once. Shapes: B products, M rows, D head_dim, S keys."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._nothing = torch.empty(1, 1, 1, dtype=dtype)

    def scores(self, q: torch.Tensor, k: torch.Tensor, scale: float, items: int) -> torch.Tensor:
        """Multiply q [B, M, D] by k [B, S, D], scaled; return [B, M, S].

        items: how many items the B products are of, ordered by key head first.
        """
        return torch.baddbmm(self._nothing, q, k.transpose(1, 2), beta=0, alpha=scale)

    def values(self, weights: torch.Tensor, v: torch.Tensor, items: int, out: torch.Tensor) -> None:
        """Multiply weights [B, M, S] by v [B, S, D], into out [B, M, D]."""
        torch.bmm(weights, v, out=out)


class Apart(Together):
    """The same, item by item: what is computed for one item does not depend on how many there are."""

    def scores(self, q: torch.Tensor, k: torch.Tensor, scale: float, items: int) -> torch.Tensor:
        """Like Together.scores."""
        parts = zip(_by_item(q, items), _by_item(k, items), strict=True)
        return torch.stack([super(Apart, self).scores(mine, keys, scale, 1) for mine, keys in parts], 1).flatten(0, 1)

    def values(self, weights: torch.Tensor, v: torch.Tensor, items: int, out: torch.Tensor) -> None:
        """Like Together.values."""
        parts = zip(_by_item(weights, items), _by_item(v, items), strict=True)
        torch.stack([torch.bmm(mine, values) for mine, values in parts], 1, out=out.view(-1, items, *out.shape[1:]))


def deterministic_products(dtype: torch.dtype, shapes: Iterable[tuple[int, int, int]]) -> Together:
    """Return the products of deterministic mode on this machine, with as many threads as torch has now.

    shapes: all (key heads, rows of a product, head_dim) that decoding will use.
    """
    together = Together(dtype)
    return together if all(_alike(together, dtype, *shape) for shape in set(shapes)) else Apart(dtype)


def _alike(products: Together, dtype: torch.dtype, heads: int, rows: int, dim: int) -> bool:
    """Whether an item's products are bit for bit the same in a batch of any size.

    The summands cancel each other out, so only rounding is left, which depends on the order of the sums.
    """
    noise = torch.Generator().manual_seed(7)
    most = max(_ITEMS)
    for keys in _KEYS:
        q, k = _cancelling(noise, heads * most, rows, keys, dim, dtype)
        weights, v = _cancelling(noise, heads * most, rows, dim, keys, dtype)
        every = [_by_item(x, most) for x in (q, k, weights, v.transpose(1, 2))]
        *fewer, (scores, values) = [_multiplied(products, *[x[:items] for x in every]) for items in _ITEMS]
        for some, other in fewer:
            if not (torch.equal(some, scores[: len(some)]) and torch.equal(other, values[: len(other)])):
                return False
    return True


def _multiplied(
    products: Together, q: torch.Tensor, k: torch.Tensor, weights: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores and values, [items, K, ...] like all arguments."""
    items = len(q)
    q, k, weights, v = (x.transpose(0, 1).flatten(0, 1) for x in (q, k, weights, v))
    out = weights.new_empty(*weights.shape[:2], v.shape[-1])
    scores = products.scores(q, k, 1.0, items)
    products.values(weights, v, items, out)
    return _by_item(scores, items), _by_item(out, items)


def _cancelling(
    noise: torch.Generator, count: int, rows: int, columns: int, depth: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return [count, rows, depth] and [count, columns, depth]; without rounding each row times each column
    would be 0.
    """
    order = torch.randperm(depth, generator=noise)
    a = torch.randn(count, rows, depth // 2, generator=noise)
    b = torch.randn(count, columns, depth // 2, generator=noise)
    left, right = torch.cat((a, a), -1), torch.cat((b, -b), -1)
    if depth % 2:
        left, right = F.pad(left, (0, 1)), F.pad(right, (0, 1))
    return left[..., order].to(dtype), right[..., order].to(dtype)


def _by_item(x: torch.Tensor, items: int) -> torch.Tensor:
    """Return [K * items, ...], key heads first, as [items, K, ...].

    A copy, because even the stride of one head affects the choice of kernels.
    """
    return x.view(-1, items, *x.shape[1:]).transpose(0, 1).clone(memory_format=torch.contiguous_format)
