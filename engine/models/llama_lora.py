"""An adapter in the decoder's own form: one pair for each of a layer's products, which combine several modules."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from engine.errors import ModelError
from engine.models.lora import Pair
from engine.models.rope import interleave
from engine.models.spec import ModelSpec

_LANES = 16
"""Ranks are filled up to multiples of it: in others, torch's products round a row by its place among the rows."""


def fused_pairs(pairs: Mapping[str, Pair], spec: ModelSpec) -> list[dict[str, Pair]]:
    """Return, per layer, the pairs of its products "qkv", "output", "gate_up" and "down"; products without one are left
    out.

    Raises ModelError for a module that the decoder does not have, or a pair of another shape.
    """
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    products = {  # by name: the input width, and the modules side by side, with their output widths
        "qkv": (spec.hidden, [("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)]),
        "output": (q, [("self_attn.o_proj", spec.hidden)]),
        "gate_up": (spec.hidden, [("mlp.gate_proj", spec.intermediate), ("mlp.up_proj", spec.intermediate)]),
        "down": (spec.intermediate, [("mlp.down_proj", spec.hidden)]),
    }
    rotated = {"self_attn.q_proj": spec.heads, "self_attn.k_proj": spec.kv_heads}
    left = dict(pairs)
    layers: list[dict[str, Pair]] = []
    for number in range(spec.layers):
        fused: dict[str, Pair] = {}
        for product, (width, modules) in products.items():
            parts: list[tuple[Pair, int]] = []  # with the first of its columns
            begin = 0
            for module, columns in modules:
                name = f"model.layers.{number}.{module}"
                pair = left.pop(name, None)
                if pair is not None:
                    _check(pair, width, columns, name)
                    heads = rotated.get(module)
                    b = pair.b if heads is None else interleave(pair.b.T.contiguous(), heads).T
                    parts.append((Pair(pair.a, b), begin))
                begin += columns
            if parts:
                fused[product] = _beside(parts, begin)
        layers.append(fused)
    if left:
        raise ModelError(f"{len(left)} modules are not among those that can be adapted: {min(left)}")
    return layers


def _check(pair: Pair, width: int, columns: int, name: str) -> None:
    if (pair.a.shape[0], pair.b.shape[1]) != (width, columns):
        raise ModelError(
            f"{name} is {width} wide and gives {columns}, the adapter's is {pair.a.shape[0]} and gives"
            f" {pair.b.shape[1]}"
        )


def _beside(parts: list[tuple[Pair, int]], columns: int) -> Pair:
    """Return one pair that does the work of several, each for its own columns; zeros fill up its rank."""
    a = torch.cat([pair.a for pair, _ in parts], 1)
    a = F.pad(a, (0, -a.shape[1] % _LANES))
    b = a.new_zeros(a.shape[1], columns)
    rank = 0
    for pair, begin in parts:
        r, width = pair.b.shape
        b[rank : rank + r, begin : begin + width] = pair.b
        rank += r
    return Pair(a, b)
