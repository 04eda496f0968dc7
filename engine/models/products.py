"""How a decoder's products with its weights are computed: by torch here; other backends override it."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from engine.models.linear import Linear, linear
from engine.models.lora import Pair
from engine.models.quantized import Int8Matrix, check_int8
from engine.models.stored import StoredMatrix


class Products:
    """torch's products; a backend that has faster ones overrides them."""

    @property
    def keep(self) -> bool:
        """Whether it is worth keeping matrices as they are stored, in fewer bits than the model's dtype has."""
        return False

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """Return the product with weight [O, I], which must not change afterwards: it may be kept, or shared.

        If `keep` is true, a float32 model's may be bfloat16.
        """
        return linear(weight, bias)

    def stored(self, matrix: StoredMatrix, bias: torch.Tensor | None = None) -> Linear | None:
        """Return the product with a matrix as it is stored, bit for bit the one with its floats; None if
        there is none.
        """
        return None

    def int8(self, matrix: Int8Matrix, bias: torch.Tensor | None = None) -> Linear:
        """Return the product with an int8 matrix; before the bias it is bit for bit the matrix's own `product`.

        Raises ConfigError if torch's int8 products are not exact on this CPU.
        """
        check_int8()
        return partial(matrix.product, bias=bias)

    def pair(self, pair: Pair) -> Linear:
        """Return the product with both matrices of an adapter's pair."""
        return pair

    def normed(self, x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
        """Return the input of the last product: x [N, H] float32 by its root mean square, times weight [H],
        in this dtype.
        """
        return F.rms_norm(x, weight.shape, weight, eps).to(dtype)


TORCH = Products()
