"""Quantized blocks of a GGUF file as values with scales and offsets, for formats that have this structure.

The layouts are ggml's (ggml-common.h, and dequantize_row_* of ggml-quants.c). A test compares each bit for bit with the
gguf package's dequantizing.

Shapes: B blocks; the numbers of a block are in the order in which they are in their row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.models.stored import StoredMatrix, Weights

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Whole = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class _Blocks:
    """values [B, numbers], whole numbers; scales, offsets [B, groups] float32; offsets is None if the
    format has none.
    """

    values: Whole
    scales: Floats
    offsets: Floats | None = None


def stored_matrix(data: Bytes, kind: GGMLQuantizationType, shape: tuple[int, int]) -> Weights | None:
    """Return a tensor's bytes as a matrix of this shape: a torch tensor if it is bfloat16, None if the format is not
    known.
    """
    if kind == GGMLQuantizationType.BF16:
        return torch.from_numpy(data.copy()).view(torch.bfloat16).view(shape)
    if kind not in _FORMATS:
        return None
    bits, read = _FORMATS[kind]
    blocks = read(data.reshape(-1, GGML_QUANT_SIZES[kind][1]))
    rows = shape[0]
    scales = torch.from_numpy(blocks.scales.reshape(rows, -1))
    offsets = torch.zeros_like(scales) if blocks.offsets is None else torch.from_numpy(blocks.offsets.reshape(rows, -1))
    return StoredMatrix(torch.from_numpy(blocks.values.astype(np.int8).reshape(shape)), scales, offsets, bits)


def _halves(blocks: Bytes, at: int, count: int = 1) -> Floats:
    """Return the 16-bit floats that begin at byte `at` of each block: [B, count]."""
    return np.ascontiguousarray(blocks[:, at : at + 2 * count]).view(np.float16).astype(np.float32)


def _nibbles(blocks: Bytes, at: int, each: int) -> Whole:
    """Return the low halves of `each` bytes, then their high halves, and so on to the block's end: [B, numbers]."""
    parts = blocks[:, at:].reshape(len(blocks), -1, 1, each)
    return (parts >> np.array([0, 4], np.uint8).reshape(2, 1) & 15).reshape(len(blocks), -1)


def _fifth_bits(blocks: Bytes, at: int) -> Whole:
    """Return what the 32 fifth bits add to values of four bits: [B, 32]."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << 4


def _q4_0(blocks: Bytes) -> _Blocks:
    scales = _halves(blocks, 0)
    return _Blocks(_nibbles(blocks, 2, 16), scales, scales * np.float32(-8))


def _q4_1(blocks: Bytes) -> _Blocks:
    return _Blocks(_nibbles(blocks, 4, 16), _halves(blocks, 0), _halves(blocks, 2))


def _q5_0(blocks: Bytes) -> _Blocks:
    return _Blocks((_nibbles(blocks, 6, 16) | _fifth_bits(blocks, 2)).astype(np.int8) - 16, _halves(blocks, 0))


def _q5_1(blocks: Bytes) -> _Blocks:
    values = _nibbles(blocks, 8, 16) | _fifth_bits(blocks, 4)
    return _Blocks(values, _halves(blocks, 0), _halves(blocks, 2))


def _q8_0(blocks: Bytes) -> _Blocks:
    return _Blocks(blocks[:, 2:].view(np.int8), _halves(blocks, 0))


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Return scales and offsets of eight groups: six bits each, times the block's own scale and offset: [B, 8]."""
    low, least, high = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([low & 63, (high & 15) | (low >> 2 & 48)], axis=1)
    offsets = np.concatenate([least & 63, (high >> 4) | (least >> 2 & 48)], axis=1)
    return _halves(blocks, 0) * scales, -(_halves(blocks, 2) * offsets)


def _q4_k(blocks: Bytes) -> _Blocks:
    return _Blocks(_nibbles(blocks, 16, 32), *_k_scales(blocks))


def _q5_k(blocks: Bytes) -> _Blocks:
    bits = blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(8, 1) & 1
    values = _nibbles(blocks, 48, 32) | bits.reshape(len(blocks), -1) << 4
    return _Blocks(values, *_k_scales(blocks))


def _q6_k(blocks: Bytes) -> _Blocks:
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8).reshape(2, 1) & 15  # [B, 2, 2, 64]
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1) & 3
    values = low.reshape(len(blocks), -1) | high.reshape(len(blocks), -1) << 4
    scales = _halves(blocks, 208) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return _Blocks(values.astype(np.int8) - 32, scales)


_Q = GGMLQuantizationType
_FORMATS: dict[GGMLQuantizationType, tuple[int, Callable[[Bytes], _Blocks]]] = {
    _Q.Q4_0: (4, _q4_0),
    _Q.Q4_1: (4, _q4_1),
    _Q.Q5_0: (8, _q5_0),
    _Q.Q5_1: (8, _q5_1),
    _Q.Q8_0: (8, _q8_0),
    _Q.Q4_K: (4, _q4_k),
    _Q.Q5_K: (8, _q5_k),
    _Q.Q6_K: (8, _q6_k),
}
"""By format: the bits of a value as it is kept, and the function that reads the blocks."""
