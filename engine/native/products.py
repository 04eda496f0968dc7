"""Products in C: int8 where the processor has AVX-512 VNNI, bfloat16 where it has no products of its own.

A weight is read once for eight rows, out of panels in the order of reading, and a row's sums run in one order whatever
runs beside it. What is rounded before and behind is part of the call.

Shapes: N tokens, I in, O out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.models.linear import Linear
from engine.models.products import Int8Product, Products
from engine.models.quantized import Int8Matrix
from engine.native.build import LANES, PANEL, Kernels


@dataclass(frozen=True, slots=True)
class NativeProducts(Products):
    """Those that the kernels know, and torch's for the others. emulated: the processor has none in bfloat16."""

    kernels: Kernels
    emulated: bool

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """As Products.linear."""
        if weight.dtype != torch.bfloat16 or not self.emulated or not _fits(weight):
            return super(NativeProducts, self).linear(weight, bias)
        panels = weight.view(-1, PANEL, weight.shape[1]).transpose(1, 2).contiguous()  # [O / PANEL, I, PANEL]
        return _Bfloat16(panels, bias, len(weight), self.kernels)

    def int8(self, matrix: Int8Matrix) -> Int8Product:
        """As Products.int8."""
        if self.kernels.product_int8 is None or not _fits(matrix.values):
            return super(NativeProducts, self).int8(matrix)
        values = matrix.values.view(torch.uint8).bitwise_xor(128)  # 128 more, without a wider type between
        panels = values.view(-1, PANEL, values.shape[1] // 4, 4).transpose(1, 2).contiguous()  # [O / PANEL, I / 4, ...]
        return _Int8(panels, matrix.scales, self.kernels)


def _fits(weight: torch.Tensor) -> bool:
    outputs, inputs = weight.shape
    return outputs % PANEL == 0 and inputs % LANES == 0


@dataclass(frozen=True, slots=True)
class _Bfloat16:
    panels: torch.Tensor
    bias: torch.Tensor | None
    outputs: int
    kernels: Kernels

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows, inputs = x.shape
        out = torch.empty(rows, self.outputs, dtype=x.dtype)
        floats = torch.empty(rows, inputs)
        self.kernels.product(
            x.data_ptr(),
            self.panels.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
            out.data_ptr(),
            floats.data_ptr(),
            rows,
            inputs,
            self.outputs,
        )
        return out


@dataclass(frozen=True, slots=True)
class _Int8:
    panels: torch.Tensor
    scales: torch.Tensor
    kernels: Kernels

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        rows, inputs = x.shape
        outputs = len(self.scales)
        out = torch.empty(rows, outputs, dtype=x.dtype)
        # Room for x in int8, then for each row's sum and step, of four bytes each, in one tensor.
        room = torch.empty(rows * (inputs + 8), dtype=torch.int8)
        at = room.data_ptr()
        self.kernels.product_int8(
            x.data_ptr(),
            self.panels.data_ptr(),
            self.scales.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            at,
            at + rows * inputs,
            at + rows * (inputs + 4),
            rows,
            inputs,
            outputs,
        )
        return out
