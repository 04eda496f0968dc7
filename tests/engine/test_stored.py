"""Matrices in the few bits in which their file keeps them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from engine.models.gguf_blocks import stored_matrix
from engine.models.stored import StoredMatrix, stacked

KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


@pytest.mark.filterwarnings("ignore:invalid value")  # scales of random bits, which may be no numbers
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_read_as_the_gguf_package_reads_them(kind: str) -> None:
    """To the bit, whatever bytes stand there."""
    quantization = GGMLQuantizationType[kind]
    each, size = gguf.GGML_QUANT_SIZES[quantization]
    data = np.random.default_rng(5).integers(0, 256, (31, 3 * size), dtype=np.uint8)
    expected = torch.from_numpy(gguf.dequantize(data, quantization).copy())
    matrix = stored_matrix(data.ravel(), quantization, (31, 3 * each))
    assert isinstance(matrix, StoredMatrix)
    finite = expected.isfinite()
    assert finite.float().mean() > 0.5
    assert torch.equal(matrix.floats()[finite], expected[finite])
    assert torch.equal(matrix.rows(torch.tensor([7, 0, 7]))[finite[[7, 0, 7]]], expected[[7, 0, 7]][finite[[7, 0, 7]]])
    assert matrix.group == (16 if kind == "Q6_K" else 32)
    least, most = (0, 15) if matrix.bits == 4 else (-128, 127)
    assert least <= int(matrix.values.min()) <= int(matrix.values.max()) <= most


def matrix(bits: int, group: int, rows: int = 3) -> StoredMatrix:
    scales = torch.ones(rows, 64 // group)
    return StoredMatrix(torch.ones(rows, 64, dtype=torch.int8), scales, scales, bits)


def test_only_what_is_kept_alike_is_stacked() -> None:
    plain = torch.ones(3, 64, dtype=torch.bfloat16)
    whole = stacked([matrix(8, 32), matrix(8, 32, rows=5)])
    assert isinstance(whole, StoredMatrix)
    assert whole.shape == (8, 64)
    for other in (matrix(4, 32), matrix(8, 16), plain, None):
        assert stacked([matrix(8, 32), other]) is None
    assert torch.equal(stacked([plain, plain]), torch.ones(6, 64, dtype=torch.bfloat16))  # type: ignore[arg-type]
    assert stacked([plain, plain.half()]) is None
