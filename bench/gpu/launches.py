"""The launches of all kernels for models of real sizes, by the engine's own launchers on tensors without memory.

The signature, constants and options of a kernel stand only in its launcher; this module holds the sizes. The tensors
are on torch's `meta` device and begin at address 0: they are aligned, as the engine's are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from bench.gpu.cases import LLAMA, QWEN3, ModelShape, Shape
from engine.kernels import launch
from engine.kernels.activation import silu_mul
from engine.kernels.add_product import add_product
from engine.kernels.attn_items import Work, attn_items
from engine.kernels.copy_blocks import copy_blocks
from engine.kernels.draw_table import BLOCK, DRAW
from engine.kernels.logits_edit import CHANGE, logits_edit
from engine.kernels.logprob_rank import logprob_rank
from engine.kernels.merge_parts import merge_parts
from engine.kernels.norms import rms_norm
from engine.kernels.prefill_attn import prefill_attn
from engine.kernels.qkv_rope_store import qkv_rope_store, store
from engine.kernels.sample_row import block_sums, sample_row
from engine.kernels.topk_topp import topk_topp

QWEN25 = ModelShape("Qwen2.5-0.5B", "llama", 151936, 896, 24, Shape(14, 2, 64), 4864, tied=True)
SMOLLM2 = ModelShape("SmolLM2-135M", "llama", 49152, 576, 30, Shape(9, 3, 64), 1536, tied=True)

_SLOTS, _BLOCK_SIZE, _POSITIONS = 1 << 16, 16, 40960


@dataclass(frozen=True, slots=True)
class Heads:
    """One kind of attention, with the extras that some models add."""

    shape: Shape
    dtype: torch.dtype = torch.bfloat16
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    normed: bool = False
    rotated: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """Some launches under one name."""

    name: str
    launch: Callable[[], None]


def cases(tokens: int = 8) -> Iterator[Case]:
    """Yield all cases to compile. Several cases may launch the same kernel with the same constants.

    tokens: tokens of a step; every other size that varies between steps has this value too. No kernel depends on it.
    """
    for model in (QWEN3, LLAMA, QWEN25, SMOLLM2):
        heads = Heads(model.attention, normed=model.architecture == "qwen3")
        yield Case(model.name, partial(_model, model, heads, tokens))
        for rows in (min(tokens, 16), launch.FEW_ROWS):
            yield Case(f"{model.name}, {'few' if rows == tokens else rows} rows", partial(_products, model, rows))
    for name, heads in _HEADS.items():
        yield Case(name, partial(_attention, heads, tokens))


_HEADS = {
    f"head {dim}, group {group}": Heads(Shape(2 * group, 2, dim)) for dim in (64, 128, 256) for group in (1, 2, 4, 7, 8)
}
_HEADS |= {f"head {dim}, group 4, float32": Heads(Shape(8, 2, dim), torch.float32) for dim in (64, 128, 256)}
_HEADS |= {
    "head 80, group 1, not rotated": Heads(Shape(32, 32, 80), rotated=False),
    "head 96, group 3": Heads(Shape(24, 8, 96)),
    "head 128, group 4, window": Heads(Shape(32, 8, 128), window=4096),
    "head 128, group 48": Heads(Shape(48, 1, 128)),
    "group 71, head 64": Heads(Shape(71, 1, 64)),
    "gpt-oss-20b: window, sinks": Heads(Shape(64, 8, 64), window=128, sinks=True),
    "Gemma 2 2B: window, softcap": Heads(Shape(8, 4, 256), window=4096, softcap=50.0),
}


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _ints(*shape: int) -> torch.Tensor:
    return _empty(*shape, dtype=torch.int32)


def _floats(*shape: int) -> torch.Tensor:
    return _empty(*shape, dtype=torch.float32)


def _longs(*shape: int) -> torch.Tensor:
    return _empty(*shape, dtype=torch.int64)


def _model(model: ModelShape, heads: Heads, tokens: int) -> None:
    """Make all launches of one model's step."""
    _attention(heads, tokens)
    x, added, out = _floats(tokens, model.hidden), _empty(tokens, model.hidden), _empty(tokens, model.hidden)
    for before in (None, added):
        rms_norm(x, before, _floats(model.hidden), 1e-6, out)
    silu_mul(_empty(tokens, 2 * model.intermediate), _empty(tokens, model.intermediate))
    copy_blocks(_empty(model.layers, 2 * heads.shape.kv_heads, _SLOTS, heads.shape.dim), _ints(tokens, 2), _BLOCK_SIZE)
    _sampling(_empty(tokens, model.vocab))


def _products(model: ModelShape, rows: int) -> None:
    """Make the products of one layer's decode step that are added to the residual stream."""
    x = _floats(rows, model.hidden)
    for depth in (model.attention.heads * model.attention.dim, model.intermediate):
        for bias in (None, _empty(model.hidden)):
            add_product(_empty(rows, depth), _empty(model.hidden, depth), bias, x)


def _attention(heads: Heads, tokens: int) -> None:
    """Make the launches of a layer's attention, also those of steps with few rows and with those for larger tiles."""
    for rows in (tokens, 2, 128):
        _attention_of(heads, rows)


def _attention_of(heads: Heads, tokens: int) -> None:
    shape, dtype = heads.shape, heads.dtype
    both = 2 * shape.kv_heads
    kv = _empty(both, _SLOTS, shape.dim, dtype=dtype)
    q, out = _empty(tokens, shape.heads, shape.dim, dtype=dtype), _empty(tokens, shape.heads * shape.dim, dtype=dtype)
    sinks = _empty(shape.heads, dtype=dtype) if heads.sinks else None
    scale = shape.dim**-0.5
    work = Work(_ints(tokens, 8), _ints(tokens), _ints(tokens), _ints(tokens + 1), _ints(tokens), _ints(3))
    partial, lse = _floats(tokens, shape.heads, shape.dim), _floats(tokens, shape.heads)
    for wide in (True, False):
        attn_items(
            q,
            kv,
            work,
            _ints(tokens),
            partial,
            lse,
            block_size=_BLOCK_SIZE,
            scale=scale,
            window=heads.window,
            softcap=heads.softcap,
            wide=wide,
        )
    merge_parts(partial, lse, work, out, sinks)
    prefill_attn(
        q,
        kv,
        _ints(tokens, 5),
        _ints(1),
        _ints(tokens),
        out,
        block_size=_BLOCK_SIZE,
        scale=scale,
        window=heads.window,
        softcap=heads.softcap,
        sinks=sinks,
    )
    if heads.rotated:
        qkv = _empty(tokens, (shape.heads + both) * shape.dim, dtype=dtype)
        norm = _floats(shape.dim) if heads.normed else None
        turns = _floats(_POSITIONS, shape.dim // 2)
        positions, slots = _longs(tokens), _longs(tokens)
        qkv_rope_store(qkv, turns, turns, positions, slots, kv, q, q_norm=norm, k_norm=norm, eps=1e-6)
    else:
        store(_empty(tokens, both, shape.dim, dtype=dtype), _longs(tokens), kv)


def _sampling(logits: torch.Tensor) -> None:
    """Draw from logits as they are, and from edited logits with top-k and top-p."""
    rows, vocabulary = logits.shape
    blocks = -(-vocabulary // BLOCK)
    changes = {"changes": _longs(rows, len(CHANGE.names or ()))}
    edits = {
        **{name: _longs(rows) for name in ("excluded", "biased", "tallied")},
        **{name: _floats(rows) for name in ("bias", "times")},
        "masks": _empty(rows, vocabulary // 8, dtype=torch.uint8),
    }
    edited = logits_edit(logits, changes | edits)
    logits_edit(logits, changes)
    draws, best, sums = _longs(rows, len(DRAW.names or ())), _floats(rows, blocks), _floats(rows, blocks)
    drawn = _ints(rows)
    for scores in (None, edited):
        block_sums(logits, scores, draws, best, sums)
        lowest = topk_topp(logits, scores, draws, best)
        block_sums(logits, scores, draws, best, sums, lowest)
        for least in (None, lowest):
            sample_row(logits, scores, draws, best, sums, drawn, _longs(rows), least)
    logprob_rank(logits, _longs(rows, 2), drawn, _floats(rows), _ints(rows))
