"""Matrix products under Triton's interpreter in which a row's result does not depend on its place in a tile.

The interpreter uses NumPy, and NumPy a BLAS. On some processors its kernels sum the rows of a tile in different orders,
so that bits could not be compared there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_narrow = InterpreterBuilder.create_dot


def _exact(builder: InterpreterBuilder, a: Any, b: Any, d: Any, *more: Any) -> TensorHandle:
    """Return a [M, K] times b [K, N] plus d [M, N], summed in float64: every order rounds to the same float32."""
    if a.data.dtype.kind != "f" or b.data.dtype.kind != "f":
        return _narrow(builder, a, b, d, *more)
    product = np.matmul(a.data, b.data, dtype=np.float64).astype(d.data.dtype)
    return TensorHandle(product + d.data, d.dtype.scalar)


def exact_products() -> None:
    """Use such products in this process from now on."""
    InterpreterBuilder.create_dot = _exact
