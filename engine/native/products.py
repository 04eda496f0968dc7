"""Products in C: int8 and float32 where the processor has AVX2 or more; bfloat16 where it has none of its own, or has
those of AVX-512. Where it has tiles of them, torch's are taken.

A weight is read once for half a dozen rows or a dozen, out of panels in the order of reading, and a row's sums run in
one order whatever runs beside it. What is rounded before and behind is part of the call.

Shapes: N tokens, I in, O out; P outputs of a panel, F inputs that are multiplied together.
"""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass

import torch

from engine.models.linear import Linear
from engine.models.products import Products
from engine.models.quantized import Int8Matrix
from engine.native.build import LANES, Kernels, Matrix


@dataclass(frozen=True, slots=True)
class NativeProducts(Products):
    """Those that the kernels know, and torch's for the others. emulated: torch has none in bfloat16 here."""

    kernels: Kernels
    emulated: bool

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """As Products.linear."""
        knows = self.kernels.wide and (weight.dtype == torch.float32 or self.emulated or self.kernels.paired)
        if not knows or weight.dtype != self.kernels.dtype or not self._fits(weight):
            return super(NativeProducts, self).linear(weight, bias)
        outputs, inputs = weight.shape
        together = 2 if self.kernels.paired else 1
        panels = weight.view(-1, self.kernels.panel, inputs // together, together).transpose(1, 2).contiguous()
        return NativeProduct.of(self.kernels, panels, None, bias, outputs, inputs)

    def int8(self, matrix: Int8Matrix, bias: torch.Tensor | None = None) -> Linear:
        """As Products.int8."""
        panel, together = self.kernels.panel, self.kernels.together
        if not together or not self._fits(matrix.values):
            return super(NativeProducts, self).int8(matrix, bias)
        values = matrix.values
        if self.kernels.added:  # 128, without a wider type between
            values = values.view(torch.uint8).bitwise_xor(self.kernels.added)
        outputs, inputs = values.shape
        panels = values.view(-1, panel, inputs // together, together).transpose(1, 2).contiguous()  # [., I / F, P, F]
        return NativeProduct.of(self.kernels, panels, matrix.scales, bias, outputs, inputs)

    def _fits(self, weight: torch.Tensor) -> bool:
        outputs, inputs = weight.shape
        return outputs % self.kernels.panel == 0 and inputs % LANES == 0


def room(rows: int, inputs: int) -> torch.Tensor:
    """What a product of so many rows needs beside them and its results."""
    return torch.empty(rows * (4 * inputs + 8), dtype=torch.int8)


@dataclass(frozen=True, slots=True)
class NativeProduct:
    """x [N, I] -> [N, O], as Linear. `tensors` are what `matrix` points into."""

    matrix: Matrix
    tensors: tuple[torch.Tensor | None, ...]
    kernels: Kernels

    @classmethod
    def of(
        cls,
        kernels: Kernels,
        panels: torch.Tensor,
        scales: torch.Tensor | None,
        bias: torch.Tensor | None,
        outputs: int,
        inputs: int,
    ) -> NativeProduct:
        """As struct matrix of products.h has them."""
        tensors = (panels, scales, bias)
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        return cls(Matrix(*pointers, inputs, outputs), tensors, kernels)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        rows, inputs = x.shape
        out = torch.empty(rows, self.matrix.outputs, dtype=x.dtype)
        beside = room(rows, inputs)
        self.kernels.product(x.data_ptr(), byref(self.matrix), out.data_ptr(), beside.data_ptr(), rows)
        return out
