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
    chance = torch.Generator().manual_seed(bits * group * rows)
    scales, offsets = torch.randn(2, rows, 64 // group, generator=chance)
    values = torch.randint(16, (rows, 64), generator=chance).to(torch.int8)
    return StoredMatrix(values, scales, offsets, bits)


@pytest.mark.parametrize("kept", [[(8, 32), (8, 32)], [(4, 32), (4, 32)], [(4, 32), (8, 16), (8, 32)]], ids=str)
def test_what_is_stacked_keeps_its_numbers(kept: list[tuple[int, int]]) -> None:
    """Also where one part has more bits, another more scales: files give some matrices of a layer more."""
    parts = [matrix(bits, group, rows) for rows, (bits, group) in enumerate(kept, 3)]
    whole = stacked(parts)
    assert isinstance(whole, StoredMatrix)
    assert (whole.bits, whole.group) == (max(bits for bits, _ in kept), min(group for _, group in kept))
    assert torch.equal(whole.floats(), torch.cat([part.floats() for part in parts]))


def test_what_cannot_be_stacked() -> None:
    plain = torch.ones(3, 64, dtype=torch.bfloat16)
    whole = stacked([plain, plain])
    assert isinstance(whole, torch.Tensor)
    assert torch.equal(whole.float(), torch.ones(6, 64))
    mixed: list[list[torch.Tensor | StoredMatrix | None]]
    mixed = [[plain, plain.half()], [matrix(8, 32), plain], [matrix(8, 32), None], [plain, None]]
    for parts in mixed:
        assert stacked(parts) is None
