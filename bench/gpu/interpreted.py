"""Products under Triton's interpreter, in which a row's numbers do not depend on where in a tile it stands.

The interpreter leaves them to NumPy, and that to a BLAS whose kernels add up the rows of a tile in different orders, on
some processors and not on others: no bits could be compared there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_narrow = InterpreterBuilder.create_dot


def _exact(builder: InterpreterBuilder, a: Any, b: Any, d: Any, *more: Any) -> TensorHandle:
    """a [M, K] by b [K, N], plus d [M, N], added up in float64: all orders round to the same float32."""
    if a.data.dtype.kind != "f" or b.data.dtype.kind != "f":
        return _narrow(builder, a, b, d, *more)
    product = np.matmul(a.data, b.data, dtype=np.float64).astype(d.data.dtype)
    return TensorHandle(product + d.data, d.dtype.scalar)


def exact_products() -> None:
    """From now on, in this process."""
    InterpreterBuilder.create_dot = _exact
