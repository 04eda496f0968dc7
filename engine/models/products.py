"""How a decoder's products with its weights are computed: by torch here, and by others who say so."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from engine.models.linear import Linear, linear
from engine.models.quantized import Int8Matrix, check_int8
from engine.models.stored import StoredMatrix


class Products:
    """torch's ways; a backend that knows faster ones overrides them."""

    @property
    def keep(self) -> bool:
        """Whether matrices are worth having as they are stored, in fewer bits than the model's dtype has."""
        return False

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """The product with weight [O, I], which is used up. Where `keep` says so, a float32 model's may be bfloat16."""
        return linear(weight, bias)

    def stored(self, matrix: StoredMatrix, bias: torch.Tensor | None = None) -> Linear | None:
        """The product with a matrix as it is stored, to the bit that with its floats; None where there is none."""
        return None

    def int8(self, matrix: Int8Matrix, bias: torch.Tensor | None = None) -> Linear:
        """The product with a matrix, to the bit what its own is before the bias. Raises ConfigError where torch has
        none that are exact on this CPU."""
        check_int8()
        return partial(matrix.product, bias=bias)

    def normed(self, x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
        """What the last product takes: x [N, H] float32 by its root mean square, times weight [H], in this dtype."""
        return F.rms_norm(x, weight.shape, weight, eps).to(dtype)


TORCH = Products()
