"""Attention over the paged cache on the CPU: prefill by tiles, decode by a work list.

A layer runs a few tensor operations over what was planned for the step. Every operation is defined in
kernels/reference.py, and the tests compare the two.

Shapes: T tokens, R decoding rows, Q query heads, K key (and value) heads, G = Q / K, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.attention.buckets import WIDE
from engine.attention.cache import KvCache
from engine.attention.plan import Bucket, ChunkPlan, InPlace, Layout, Plan, Planner, begun_blocks
from engine.attention.products import Together, deterministic_products
from engine.batch import Batch
from engine.kv_spans import SPAN
from engine.models.spec import AttentionSpec

# What scaled_dot_product_attention calls on a CPU; called directly for the log-sum-exp [1, K, rows] that it drops.
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

_TILE = 64  # queries of a prompt that are scored together, so that their scores stay in the cores' caches


class Attention:
    """One model's attention over one cache: `begin` a step, then `run` once per layer.

    span, deterministic, in_place: as in Planner. Items read in place are computed by torch's flash kernel for CPUs. It
    has no softcap, so if a layer has one, nothing is read in place.
    """

    def __init__(
        self,
        layers: Sequence[AttentionSpec],
        cache: KvCache,
        span: int = SPAN,
        *,
        deterministic: bool = False,
        in_place: int | None = None,
    ) -> None:
        self._layers = tuple(layers)
        self._cache = cache
        if any(layer.softcap is not None for layer in layers):
            in_place = None
        self._planner = Planner(layers, cache, span, deterministic=deterministic, in_place=in_place)
        self._chunks = Together(cache.dtype)
        self._items = deterministic_products(cache.dtype, _shapes(layers)) if deterministic else Together(cache.dtype)
        self._closed = torch.full((_TILE, _TILE), -torch.inf, dtype=cache.dtype)
        self._later = self._closed.triu(1)  # [query, key]

    def begin(self, batch: Batch) -> Plan:
        """Clear the blocks that a step begins and does not fill (see KvCache.clear), and plan the step.

        It has at least one token; its tokens are the chunks' in order, then one per row.
        """
        if begun := begun_blocks(batch, self._cache.block_size):
            self._cache.clear(begun)
        return self._planner.plan(batch)

    def run(
        self, plan: Plan, layer: int, q: torch.Tensor, kv: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Run one layer: store kv [T, 2K, D], then attend with q [T, Q, D]; return [T, Q * D].

        sinks [Q]: a score per head that takes its share of the softmax and contributes no value.
        """
        self._cache.store(layer, kv, plan.slots)
        layout = plan.layers[layer]
        if not layout.chunks:
            return self._decode(layout, layer, q, sinks)
        out = torch.empty(len(q), q.shape[1] * q.shape[2], dtype=q.dtype)
        self.prefill(plan, layer, q, out, sinks)
        if plan.rows:
            out[plan.prompt_tokens :] = self._decode(layout, layer, q[plan.prompt_tokens :], sinks)
        return out

    def prefill(
        self, plan: Plan, layer: int, q: torch.Tensor, out: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> None:
        """Compute the chunks' part of `run`, after storing: queries [T, Q, D], into out [T, Q * D]."""
        for chunk in plan.layers[layer].chunks:
            self._prefill(chunk, layer, q[chunk.begin : chunk.end], sinks, out[chunk.begin : chunk.end])

    def _prefill(
        self, chunk: ChunkPlan, layer: int, q: torch.Tensor, sinks: torch.Tensor | None, out: torch.Tensor
    ) -> None:
        """Compute causal attention of a chunk's queries [T, Q, D] over all its keys so far, into out [T, Q * D].

        Tiles end at fixed positions of the sequence, wherever the chunk begins.
        """
        spec = self._layers[layer]
        k, v = self._cache.gather(layer, chunk.places).chunk(2)  # [K, N * block_size, D] each
        q = q.view(len(q), spec.kv_heads, -1, spec.head_dim)  # [T, K, G, D]
        group = q.shape[2]
        out = out.view(q.shape)
        at, end = chunk.start, chunk.start + len(q)
        while at < end:
            stop = min(at - at % _TILE + _TILE, end)
            low = chunk.first if chunk.window is None else max(at - chunk.window + 1, chunk.first)
            here = slice(at - chunk.start, stop - chunk.start)  # t queries
            keys = slice(low - chunk.first, stop - chunk.first)  # S keys, the last t of them the queries' own
            tile = q[here].permute(1, 2, 0, 3).reshape(spec.kv_heads, -1, spec.head_dim)  # [K, G * t, D]
            scores = self._capped(spec, self._chunks.scores(tile, k[:, keys], spec.scale, 1))  # [K, G * t, S]
            by_query = scores.view(spec.kv_heads, group, stop - at, -1)
            by_query[..., at - low :] += self._later[: stop - at, : stop - at]
            if chunk.window is not None and stop - chunk.window > low:
                # The i-th query no longer sees the keys up to at + i - window.
                gone = self._closed[: stop - at, : stop - at].tril(at - chunk.window - low)
                by_query[..., : stop - at] += gone
            part = torch.bmm(torch.softmax(scores, -1), v[:, keys])  # [K, G * t, D]
            if sinks is not None:
                lse = by_query.float().logsumexp(-1)  # [K, G, t]
                part *= _left(lse, sinks.view(spec.kv_heads, group, 1)).view(*part.shape[:2], 1)
            out[here] = part.view(spec.kv_heads, group, stop - at, -1).permute(2, 0, 1, 3)
            at = stop

    def _decode(self, layout: Layout, layer: int, q: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
        """Compute attention of the rows' queries [R, Q, D] by the work list; return [R, Q * D]."""
        spec = self._layers[layer]
        by_head = q.view(len(q), spec.kv_heads, -1, spec.head_dim).transpose(0, 1).contiguous()  # [K, R, G, D]
        if layout.whole and sinks is None:
            attended, _ = self._flash(layer, layout.in_place[0], by_head)
            return attended.view(by_head.shape).transpose(0, 1).reshape(len(q), -1)
        for one in layout.in_place:
            self._attn_in_place(layout, one, layer, by_head)
        for bucket in layout.buckets:
            self._attn_items(layout, bucket, layer, by_head)
        return _merge_parts(layout, len(q), sinks)

    def _attn_in_place(self, layout: Layout, one: InPlace, layer: int, q: torch.Tensor) -> None:
        """Like _attn_items, for one item whose keys are read in place."""
        attended, lse = self._flash(layer, one, q if one.rows is None else q.index_select(1, one.rows))
        place = slice(one.first, one.first + len(q) * one.width)
        layout.partial[place].view(attended.shape).copy_(attended)
        layout.lse[place].view(lse.shape).copy_(lse)

    def _flash(self, layer: int, one: InPlace, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend with rows [K, width, G, D] over an item's keys; return [1, K, width * G, D], and the log-sum-exp
        without D.
        """
        spec = self._layers[layer]
        k, v = self._cache.view(layer)[:, one.slots].unsqueeze(0).chunk(2, 1)  # [1, K, S, D] each
        attended, lse = _flash(rows.view(1, spec.kv_heads, -1, spec.head_dim), k, v, scale=spec.scale)
        return attended, lse

    def _attn_items(self, layout: Layout, bucket: Bucket, layer: int, q: torch.Tensor) -> None:
        """Attend with a bucket's rows over their spans; write partial results and log-sum-exps into the
        layout's buffers.
        """
        spec = self._layers[layer]
        products = spec.kv_heads * bucket.items  # B: one per key head and item
        kv = self._cache.gather(layer, bucket.places).view(2 * products, -1, spec.head_dim)  # [2B, span, D]
        k, v = kv[:products], kv[products:]
        rows = q if bucket.rows is None else q.index_select(1, bucket.rows)
        rows = rows.view(products, -1, spec.head_dim)  # [B, width * G, D]
        scores = self._capped(spec, self._items.scores(rows, k, spec.scale, bucket.items)).float()
        if bucket.mask is not None:
            scores.view(spec.kv_heads, bucket.items, *scores.shape[1:]).add_(bucket.mask)
        weights = torch.softmax(scores, -1)  # [B, width * G, span]
        count = products * bucket.width
        place = slice(bucket.first, bucket.first + count)
        # For the likeliest key, weight = exp(score - lse): two maxima instead of another pass of exponentials.
        lse = layout.lse[place].view(products, -1)  # [B, width * G]
        torch.sub(scores.amax(-1), weights.amax(-1).log_(), out=lse)
        partial = layout.partial[place].view(products, -1, spec.head_dim)
        self._items.values(weights.to(v.dtype), v, bucket.items, partial)

    @staticmethod
    def _capped(spec: AttentionSpec, scores: torch.Tensor) -> torch.Tensor:
        if spec.softcap is not None:
            scores.div_(spec.softcap).tanh_().mul_(spec.softcap)
        return scores


def _shapes(layers: Sequence[AttentionSpec]) -> set[tuple[int, int, int]]:
    """Return the shapes of decoding's products in deterministic mode, as (key heads, rows of a product, head_dim)."""
    return {
        (spec.kv_heads, width * spec.heads // spec.kv_heads, spec.head_dim) for spec in layers for width in (1, WIDE)
    }


def _merge_parts(layout: Layout, rows: int, sinks: torch.Tensor | None) -> torch.Tensor:
    """Merge every row's partial results in the order of `lo`; return [rows, Q * D]."""
    count = len(layout.parts)  # P
    flat = layout.parts.view(-1)
    partial = layout.partial.index_select(0, flat)  # [P * R * K, G, D]
    if count > 1 or sinks is not None:
        # Not by torch's softmax over the parts: its rounding of a number depends on the number's place in the tensor.
        lse = layout.lse.index_select(0, flat).view(count, -1, 1)  # [P, R * K * G, 1]
        best = lse.amax(0)
        shares = (lse - best).exp_()
        parts = partial.view(count, -1, partial.shape[-1])  # [P, R * K * G, D]
        merged, total = parts[0] * shares[0], shares[0].clone()
        for p in range(1, count):
            merged.addcmul_(parts[p], shares[p])
            total += shares[p]
        merged /= total
        if sinks is not None:
            whole = (best + total.log_()).view(rows, -1)  # [R, Q]
            merged *= _left(whole, sinks).view(-1, 1)
        partial = merged.to(partial.dtype)
    return partial.view(rows, -1)


def _left(lse: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Return the share of the softmax that a sink's score leaves to the keys, whose scores' log-sum-exp is `lse`."""
    return (sinks.float() - lse).exp_().add_(1).reciprocal_()
