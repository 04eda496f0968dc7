"""Pools of more numbers than 32 bits count: 8 GB of anonymous memory, of which only what is written is taken."""

from __future__ import annotations

import mmap

import pytest
import torch

from engine.attention.tiles import plan_tiles
from engine.batch import Chunk
from engine.kernels import launch, reference
from engine.kernels.copy_blocks import copy_blocks
from engine.kernels.prefill_attn import prefill_attn
from engine.kernels.qkv_rope_store import store

BLOCK, DIM = 16, 16
SLOTS = 1 << 26
LAST = SLOTS // BLOCK - 1


@pytest.fixture
def kv() -> torch.Tensor:
    """[4, SLOTS, DIM]: two heads' keys are 2^31 numbers."""
    return torch.frombuffer(mmap.mmap(-1, 8 * SLOTS * DIM), dtype=torch.float16).view(4, SLOTS, DIM)


def test_storing_and_reading_at_the_far_end(kv: torch.Tensor) -> None:
    torch.manual_seed(1)
    new, q = torch.randn(9, 4, DIM).half(), torch.randn(9, 2, DIM).half()
    slots = torch.arange(LAST * BLOCK, LAST * BLOCK + 9)
    store(new, slots, kv)
    assert torch.equal(kv[:, slots], new.transpose(0, 1))
    shape = launch.Prefill(rows=16, keys=8, warps=1, stages=1)
    plan = plan_tiles([Chunk(0, (1,) * 9, 0, (LAST,))], shape.queries(1), BLOCK)
    out = torch.empty(9, 2 * DIM, dtype=torch.float16)
    tiles, blocks = torch.from_numpy(plan.tiles), torch.from_numpy(plan.blocks)
    count = torch.tensor([len(tiles)], dtype=torch.int32)
    prefill_attn(q, kv, tiles, count, blocks, out, block_size=BLOCK, scale=0.25, shape=shape)
    keys, values = new.double().transpose(0, 1).chunk(2)
    expected = reference.prefill_attn(q.double(), keys, values, torch.arange(9), 0, 0.25)
    torch.testing.assert_close(out.view(q.shape).double(), expected, rtol=4e-3, atol=4e-3)


def test_copying_from_the_far_end(kv: torch.Tensor) -> None:
    kv[:, LAST * BLOCK :] = torch.randn(4, BLOCK, DIM)
    copy_blocks(kv.unsqueeze(0), torch.tensor([[LAST, 3]], dtype=torch.int32), BLOCK)
    assert torch.equal(kv[:, 3 * BLOCK : 4 * BLOCK], kv[:, LAST * BLOCK :])
