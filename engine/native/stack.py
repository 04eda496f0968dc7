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
from engine.native.build import DecoderLayer, Kernels, Scratch
from engine.native.products import NativeProduct, scratch


@dataclass(frozen=True, slots=True)
class Stack:
    """A decoder's layers in the kernels' format."""

    model: Decoder
    """Holds what the layers point into, like `attention`."""
    attention: NativeAttention
    kernels: Kernels
    layers: Array[DecoderLayer]
    wide: int
    """The larger of the widths before attention and before the activation."""
    narrow: int
    """The larger of the widths behind attention and behind the activation."""

    @classmethod
    def of(cls, model: Decoder, attention: NativeAttention, kernels: Kernels) -> Stack | None:
        """Return the decoder's stack; None if one of its products is not the kernels'."""
        layers = [_described(layer, attention, number) for number, layer in enumerate(model.layers)]
        known = [layer for layer in layers if layer is not None]
        if len(known) < len(layers):
            return None
        wide = max(max(layer.qkv.outputs, layer.gate_up.outputs) for layer in known)
        narrow = max(max(layer.output.inputs, layer.down.inputs) for layer in known)
        return cls(model, attention, kernels, (DecoderLayer * len(known))(*known), wide, narrow)

    def run(self, plan: NativePlan, x: torch.Tensor, rotations: torch.Tensor) -> None:
        """Run the residual stream x [T, H] float32 through all layers, in place; of tokens that the plan does not want,
        nothing meaningful is left. rotations [T, D / 2]: complex64.
        """
        tokens, hidden = x.shape
        widths = (hidden, hidden, self.wide, self.narrow)
        results = torch.empty(tokens, sum(widths), dtype=self.kernels.dtype)
        size = tokens * results.element_size()
        pointers = [results.data_ptr() + size * before for before in accumulate(widths[:-1], initial=0)]
        more = scratch(tokens, max(hidden, self.narrow))
        lists = (c_void_p * len(plan.lists))(*[addressof(listed.work) for listed in plan.lists])
        self.kernels.layers(
            self.layers,
            lists,
            len(self.layers),
            self.model.spec.eps,
            x.data_ptr(),
            rotations.data_ptr(),
            plan.slots.data_ptr(),
            byref(Scratch(*pointers, more.data_ptr())),
            tokens,
            None if plan.wanted is None else plan.wanted.data_ptr(),
            tokens if plan.wanted is None else len(plan.wanted),
            byref(self.kernels.timings),
        )


def _described(layer: Layer, attention: NativeAttention, number: int) -> DecoderLayer | None:
    """Describe a layer to the kernels; None if one of its products is not theirs."""
    products: Sequence[object] = (layer.qkv, layer.output, layer.gate_up, layer.down)
    matrices = [product.matrix for product in products if isinstance(product, NativeProduct)]
    if len(matrices) < len(products):
        return None
    heads = layer.heads
    norms = (layer.attention_norm, layer.mlp_norm, heads.q_norm, heads.k_norm)
    pointers = [None if norm is None else norm.data_ptr() for norm in norms]
    return DecoderLayer(*pointers, *matrices, pointer(attention.layers[number]), heads.rotated)
