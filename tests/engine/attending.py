"""What tests of the CPU's attention share: a cache with queries, and layers with special settings."""

from __future__ import annotations

from typing import Any

import torch

from engine.attention.cache import KvCache
from engine.attention.compute import Attention
from engine.batch import Batch, Row
from engine.kernels import reference
from engine.kv_spans import Item
from engine.models.spec import AttentionSpec
from tests.engine.forest import BLOCK


def spec_of(heads: int, kv_heads: int, window: int | None = None, softcap: float | None = None) -> AttentionSpec:
    return AttentionSpec(heads, kv_heads, head_dim=16, scale=0.3, window=window, softcap=softcap)


class Case:
    """A cache filled with random numbers, and random queries, keys and values for some rows, in one dtype."""

    def __init__(
        self,
        spec: AttentionSpec,
        blocks: int,
        rows: int,
        dtype: torch.dtype = torch.float32,
        span: int = 512,
        in_place: int | None = None,
    ) -> None:
        torch.manual_seed(5)
        self.spec = spec
        self.cache = KvCache([spec, spec], blocks, BLOCK, dtype)
        self.cache.pools[0].copy_(torch.randn(self.cache.pools[0].shape))
        self.attention = Attention([spec, spec], self.cache, span, in_place=in_place)
        self.q = torch.randn(rows, spec.heads, spec.head_dim).to(dtype) * 2
        self.kv = torch.randn(rows, 2 * spec.kv_heads, spec.head_dim).to(dtype)

    def run(self, batch: Batch, layer: int = 1, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """Return the output, [T, Q, D]."""
        plan = self.attention.begin(batch)
        return self.attention.run(plan, layer, self.q, self.kv, sinks).view(self.q.shape)

    def halves(self, layer: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a layer's keys and values in float64, as the last run left them."""
        data = self.cache.pools[0][layer].double()
        return data[: self.spec.kv_heads], data[self.spec.kv_heads :]

    def assert_alone(self, rows: list[Row], out: torch.Tensor, sinks: torch.Tensor | None) -> None:
        """Assert that each row's output is that of a one-token chunk over its past, by the reference in float64."""
        spec = self.spec
        for i, row in enumerate(rows):
            slots = reference.span_slots(row.blocks, 0, row.position + 1, BLOCK)
            q = self.q[i : i + 1].double()
            expected = reference.prefill_attn(
                q,
                *self.halves(),
                slots,
                row.position,
                spec.scale,
                window=spec.window,
                softcap=spec.softcap,
                sinks=sinks,
            )
            torch.testing.assert_close(out[i].double(), expected[0], rtol=1e-5, atol=1e-5)

    def whole(self, rows: list[Row]) -> torch.Tensor:
        """Return the attention of each row over its whole past in one piece, [R, Q, D] in float64."""
        keys, values = self.halves()
        items = [Item((i,), row.blocks, 0, row.position + 1, i) for i, row in enumerate(rows)]
        scale = self.spec.scale
        return reference.attn_items(self.q.double(), keys, values, items, BLOCK, scale)[0]


SPECIAL = [
    {"window": 1},
    {"window": 3},
    {"window": 8},
    {"window": 17},
    {"window": 64},
    {"softcap": 2.0},
    {"sinks": True},
    {"window": 9, "softcap": 3.0, "sinks": True},
]


def special(settings: dict[str, Any], heads: int, kv_heads: int) -> tuple[AttentionSpec, torch.Tensor | None]:
    settings = dict(settings)
    torch.manual_seed(3)
    sinks = torch.randn(heads) * 2 if settings.pop("sinks", False) else None
    return spec_of(heads, kv_heads, **settings), sinks
