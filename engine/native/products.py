"""Matrix products in C: int8 and float32 if the processor has AVX2 or better; bfloat16 if it has no products of its own
for it, or has those of AVX-512 or AMX. If products are computed in floats, matrices of few bits stay as they are
stored, and become floats in registers, or in a core's cache.

A weight is read once for half a dozen rows or more, from panels in reading order, and a row's sums are computed in
one order whatever rows run beside it. Rounding before and after is part of the call.

Shapes: N tokens, I in, O out; P outputs of a panel, F inputs that are multiplied together.
"""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from engine.models.linear import Linear
from engine.models.lora import Pair
from engine.models.products import Products
from engine.models.quantized import Int8Matrix
from engine.models.stored import StoredMatrix
from engine.native.build import BYTES, ELEMENTS, HALVES, INT8, LANES, NIBBLES, NIBBLES_GROUP, Kernels, Matrix
from engine.native.huge_pages import HugePages


@dataclass(frozen=True, slots=True)
class NativeProducts(Products):
    """The products that the kernels support, and torch's for the others.

    emulated: torch emulates bfloat16 here. pages: where weights are kept.
    """

    kernels: Kernels
    emulated: bool
    pages: HugePages = field(default_factory=HugePages, compare=False)

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """Like Products.linear."""
        kernels = self.kernels
        halves = kernels.narrow and weight.dtype == torch.bfloat16 != kernels.dtype
        knows = kernels.wide and (self._by_floats or kernels.paired)
        if not knows or not (halves or weight.dtype == kernels.dtype) or not self._fits(weight):
            return super(NativeProducts, self).linear(weight.to(kernels.dtype), bias)
        outputs, inputs = weight.shape
        together = 2 if kernels.paired else 1
        panels = self.pages.moved(weight.view(-1, kernels.panel, inputs // together, together).transpose(1, 2))
        return NativeProduct.of(kernels, panels, None, bias, (outputs, inputs), HALVES if halves else ELEMENTS)

    def int8(self, matrix: Int8Matrix, bias: torch.Tensor | None = None) -> Linear:
        """Like Products.int8."""
        panel, together = self.kernels.panel, self.kernels.together
        if not together or not self._fits(matrix.values):
            return super(NativeProducts, self).int8(matrix, bias)
        values = matrix.values
        if self.kernels.added:  # adds 128 without converting to a wider type
            values = values.view(torch.uint8).bitwise_xor(self.kernels.added)
        outputs, inputs = values.shape
        panels = self.pages.moved(values.view(-1, panel, inputs // together, together).transpose(1, 2))
        return NativeProduct.of(self.kernels, panels, matrix.scales, bias, (outputs, inputs), INT8)

    @property
    def keep(self) -> bool:
        """Like Products.keep. False if the processor multiplies bfloat16, whose weights must be bfloat16."""
        return self.kernels.narrow and self._by_floats

    def stored(self, matrix: StoredMatrix, bias: torch.Tensor | None = None) -> Linear | None:
        """Like Products.stored."""
        if not self.keep:
            return None
        kind, panel, group = (NIBBLES if matrix.bits == 4 else BYTES), self.kernels.panel, matrix.group
        together = 32 // matrix.bits  # values in a word
        if not self._fits(matrix.values) or group % together or (kind == NIBBLES and group != NIBBLES_GROUP):
            return None
        outputs, inputs = matrix.shape
        words = _words(matrix.values.view(-1, panel, inputs // group, group // together, together), matrix.bits)
        shared = [each.view(-1, panel, inputs // group) for each in (matrix.scales, matrix.offsets)]
        parts = [each.transpose(1, 2).contiguous().view(torch.int32) for each in shared]  # [., I / G, P]
        panels = self.pages.moved(torch.cat([*parts, words.permute(0, 2, 3, 1).flatten(2)], 2))
        return NativeProduct.of(self.kernels, panels, None, bias, (outputs, inputs), kind, group)

    def pair(self, pair: Pair) -> Linear:
        """Like Products.pair. Zeros fill up the rank to whole panels."""
        more = -len(pair.b) % max(self.kernels.panel, LANES)
        first = self.linear(F.pad(pair.a, (0, more)).T.contiguous())
        second = self.linear(F.pad(pair.b, (0, 0, 0, more)).T.contiguous())
        if isinstance(first, NativeProduct) and isinstance(second, NativeProduct):
            return NativePair(first, second)
        return super(NativeProducts, self).pair(pair)

    def normed(self, x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
        """Like Products.normed."""
        if dtype != self.kernels.dtype or x.shape[1] % LANES:
            return super(NativeProducts, self).normed(x, weight, eps, dtype)
        x, out = x.contiguous(), torch.empty(x.shape, dtype=dtype)
        self.kernels.norm(x.data_ptr(), None, weight.data_ptr(), eps, out.data_ptr(), *x.shape)
        return out

    @property
    def _by_floats(self) -> bool:
        """Whether products are computed in floats because torch has nothing better for these elements."""
        return self.kernels.dtype == torch.float32 or self.emulated

    def _fits(self, weight: torch.Tensor) -> bool:
        outputs, inputs = weight.shape
        return outputs % self.kernels.panel == 0 and inputs % LANES == 0


def _words(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack values [..., N] of `bits` bits into words [...], the first value in the lowest bits."""
    words = torch.zeros(values.shape[:-1], dtype=torch.int32)
    for at in range(values.shape[-1]):
        words |= (values[..., at].int() & (1 << bits) - 1) << bits * at
    return words


def scratch(rows: int, inputs: int) -> torch.Tensor:
    """Return the buffer that a product of so many rows needs beside them and its results."""
    return torch.empty(rows * (4 * inputs + 8), dtype=torch.int8)


@dataclass(frozen=True, slots=True)
class NativeProduct:
    """x [N, I] -> [N, O], like Linear. `tensors` are what `matrix` points into."""

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
        shape: tuple[int, int],
        kind: int,
        group: int = 0,
    ) -> NativeProduct:
        """Make a matrix of this shape [O, I], in the format of struct matrix of matrix.h."""
        tensors = (panels, scales, bias)
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        return cls(Matrix(*pointers, shape[1], shape[0], kind, group), tensors, kernels)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        rows, inputs = x.shape
        out = torch.empty(rows, self.matrix.outputs, dtype=x.dtype)
        memory = scratch(rows, inputs)
        self.kernels.product(x.data_ptr(), byref(self.matrix), out.data_ptr(), memory.data_ptr(), rows)
        return out


@dataclass(frozen=True, slots=True)
class NativePair:
    """x [N, I] -> [N, O], like Linear: the products of an adapter's pair one after the other."""

    first: NativeProduct
    second: NativeProduct

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        return self.second(self.first(x))
