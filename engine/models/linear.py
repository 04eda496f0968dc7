"""Products with a fixed weight matrix, y = x W^T + b, in the form that is fastest on this CPU.

oneDNN packs a weight once into the order in which its kernels read it: measured on two Zen 5 cores this halves the time
of small batches and of all fp32 products, and prefill does not become slower. The plain copy is dropped. If torch is
built without oneDNN, the plain product is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

Linear = Callable[[torch.Tensor], torch.Tensor]

_PACKED_FOR_ROWS = 32  # a hint to oneDNN; one packing works equally well for every batch size


@dataclass(frozen=True, slots=True)
class Dense:
    """The product by torch with a weight [out, in] that is kept as it is; a backend may compute it otherwise."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [rows, in] times the weight, transposed, plus the bias: [rows, out]."""
        return F.linear(x, self.weight, self.bias)


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Make the product of x [rows, in] with `weight` [out, in], both of one dtype; it returns [rows, out].

    In float32 a row's numbers do not depend on how many rows run beside it, as far as oneDNN's kernels guarantee that
    (a test checks it): a single row is run as two, because it would use another kernel. Call outside of inference mode,
    in which packing is not possible.
    """
    if not _can_pack(weight):
        return Dense(weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
    product = torch.ops.mkldnn._linear_pointwise.default
    keep_order = weight.dtype == torch.float32

    def run(x: torch.Tensor) -> torch.Tensor:
        if keep_order and x.shape[0] == 1:
            return run(torch.cat((x, x)))[:1]
        y: torch.Tensor = product(x, packed, bias, "none", [], "")
        return y

    return run


def _can_pack(weight: torch.Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
