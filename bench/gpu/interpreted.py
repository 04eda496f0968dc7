"""Triton's interpreter in half of the time, with products in which a row's result does not depend on its place.

The interpreter uses NumPy, and NumPy a BLAS. On some processors its kernels sum the rows of a tile in different orders,
so that bits could not be compared there.

At every call of a function it looks through the whole language for what to replace, and for every value it makes the
same tables of types and shapes anew. That is most of its time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from triton.language import core
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_narrow = InterpreterBuilder.create_dot
_patch_lang, _get_np_dtype = interpreter._patch_lang, interpreter._get_np_dtype
_block_type, _tensor = core.block_type.__init__, core.tensor.__init__
_dtypes: dict[str, np.dtype[Any]] = {}
_blocks: dict[Any, dict[str, Any]] = {}
_shapes: dict[Any, tuple[Any, Any]] = {}


def _exact(builder: InterpreterBuilder, a: Any, b: Any, d: Any, *more: Any) -> TensorHandle:
    """Return a [M, K] times b [K, N] plus d [M, N], summed in float64: every order rounds to the same float32."""
    if a.data.dtype.kind != "f" or b.data.dtype.kind != "f":
        return _narrow(builder, a, b, d, *more)
    product = np.matmul(a.data, b.data, dtype=np.float64).astype(d.data.dtype)
    return TensorHandle(product + d.data, d.dtype.scalar)


class _Stays:
    """The language stays replaced, as nothing compiles kernels in this process."""

    def restore(self) -> None:
        """Do nothing."""


@cache
def _patched(function: Any) -> _Stays:
    _patch_lang(function)
    return _Stays()


def _np_dtype(type_: Any) -> np.dtype[Any]:
    name = type_.scalar.name
    if name not in _dtypes:
        _dtypes[name] = _get_np_dtype(type_)
    return _dtypes[name]


def _new_block_type(self: Any, element_ty: Any, shape: Any) -> None:
    key = (element_ty.name, *[getattr(size, "value", size) for size in getattr(shape, "value", shape)])
    if key not in _blocks:
        _block_type(self, element_ty, shape)
        _blocks[key] = dict(vars(self))
    vars(self).update(_blocks[key])


def _new_tensor(self: Any, handle: Any, type: Any) -> None:
    if type.name not in _shapes:
        _tensor(self, handle, type)
        _shapes[type.name] = self.shape, self.numel
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = _shapes[type.name]


def exact_products() -> None:
    """Use such products in this process from now on."""
    InterpreterBuilder.create_dot = _exact


def known_types() -> None:
    """Replace the language once in this process, and make each type and shape once, from now on."""
    interpreter._patch_lang = _patched
    interpreter._get_np_dtype = _np_dtype
    core.block_type.__init__ = _new_block_type
    core.tensor.__init__ = _new_tensor
