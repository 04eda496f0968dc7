"""All layers of a decoder in one call: otherwise a small model's step is hundreds of calls, which cost more than their
work.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array, addressof, byref, c_void_p, pointer
from dataclasses import dataclass
from itertools import accumulate

import torch

from engine.models.llama import Decoder, Layer
from engine.native.attention import NativeAttention, NativePlan
from engine.native.build import Block, Kernels, Room
from engine.native.products import NativeProduct, room


@dataclass(frozen=True, slots=True)
class Stack:
    """A decoder's layers in the kernels' format."""

    model: Decoder
    """Holds what the blocks point into, like `attention`."""
    attention: NativeAttention
    kernels: Kernels
    blocks: Array[Block]
    wide: int
    """The larger of the widths before attention and before the activation."""
    narrow: int
    """The larger of the widths behind attention and behind the activation."""

    @classmethod
    def of(cls, model: Decoder, attention: NativeAttention, kernels: Kernels) -> Stack | None:
        """Return the decoder's stack; None if one of its products is not the kernels'."""
        blocks = [_block(layer, attention, number) for number, layer in enumerate(model.layers)]
        known = [block for block in blocks if block is not None]
        if len(known) < len(blocks):
            return None
        wide = max(max(block.qkv.outputs, block.gate_up.outputs) for block in known)
        narrow = max(max(block.output.inputs, block.down.inputs) for block in known)
        return cls(model, attention, kernels, (Block * len(known))(*known), wide, narrow)

    def run(self, plan: NativePlan, x: torch.Tensor, turns: torch.Tensor) -> None:
        """Run the residual stream x [T, H] float32 through all layers, in place. turns [T, D / 2]: complex64."""
        tokens, hidden = x.shape
        widths = (hidden, hidden, self.wide, self.narrow)
        results = torch.empty(tokens, sum(widths), dtype=self.kernels.dtype)
        size = tokens * results.element_size()
        pointers = [results.data_ptr() + size * before for before in accumulate(widths[:-1], initial=0)]
        beside = room(tokens, max(hidden, self.narrow))
        lists = (c_void_p * len(plan.lists))(*[addressof(listed.work) for listed in plan.lists])
        self.kernels.layers(
            self.blocks,
            lists,
            len(self.blocks),
            self.model.spec.eps,
            x.data_ptr(),
            turns.data_ptr(),
            plan.slots.data_ptr(),
            byref(Room(*pointers, beside.data_ptr())),
            tokens,
            byref(self.kernels.spent),
        )


def _block(layer: Layer, attention: NativeAttention, number: int) -> Block | None:
    products: Sequence[object] = (layer.qkv, layer.output, layer.gate_up, layer.down)
    matrices = [product.matrix for product in products if isinstance(product, NativeProduct)]
    if len(matrices) < len(products):
        return None
    heads = layer.heads
    norms = (layer.attention_norm, layer.mlp_norm, heads.q_norm, heads.k_norm)
    pointers = [None if norm is None else norm.data_ptr() for norm in norms]
    return Block(*pointers, *matrices, pointer(attention.layers[number]), heads.rotated)
