"""Pools of more numbers than 32 bits count: 8 GB of anonymous memory, of which only what is written is taken."""

from __future__ import annotations

import mmap

import pytest
import torch

from engine.batch import Chunk, Row
from engine.device.tiles import plan_tiles
from engine.device.worklist import Tables, Tiling, work_list
from engine.kernels import launch, reference
from engine.kernels.attn_items import Work, attn_items
from engine.kernels.copy_blocks import copy_blocks
from engine.kernels.prefill_attn import prefill_attn
from engine.kernels.qkv_rope_store import store
from engine.kv_spans import plan_kv_spans
from tests.engine.forest import DRAW

BLOCK, DIM = 16, 16


@pytest.fixture(params=[(1, 2**27 + BLOCK), (2, 2**26)], ids=["one head", "two heads"])
def kv(request: pytest.FixtureRequest) -> torch.Tensor:
    """A layer [2K, S, DIM] whose keys alone are 2^31 numbers or more: those of one head, or of two together."""
    heads, slots = request.param
    return torch.frombuffer(mmap.mmap(-1, 4 * heads * slots * DIM), dtype=torch.float16).view(2 * heads, slots, DIM)


def test_storing_and_reading_at_the_far_end(kv: torch.Tensor) -> None:
    torch.manual_seed(1)
    last, heads = kv.shape[1] // BLOCK - 1, len(kv) // 2
    new, q = torch.randn(9, 2 * heads, DIM).half(), torch.randn(9, heads, DIM).half()
    slots = torch.arange(last * BLOCK, last * BLOCK + 9)
    store(new, slots, kv)
    assert torch.equal(kv[:, slots], new.transpose(0, 1))
    shape = launch.Prefill(rows=16, keys=8, warps=1, stages=1)
    plan = plan_tiles([Chunk(0, (1,) * 9, 0, (last,))], shape.queries(1), BLOCK)
    out = torch.empty(9, heads * DIM, dtype=torch.float16)
    tiles, blocks = torch.from_numpy(plan.tiles), torch.from_numpy(plan.blocks)
    count = torch.tensor([len(tiles)], dtype=torch.int32)
    prefill_attn(q, kv, tiles, count, blocks, out, block_size=BLOCK, scale=0.25, shape=shape)
    keys, values = new.double().transpose(0, 1).chunk(2)
    expected = reference.prefill_attn(q.double(), keys, values, torch.arange(9), 0, 0.25)
    torch.testing.assert_close(out.view(q.shape).double(), expected, rtol=4e-3, atol=4e-3)


def test_decoding_at_the_far_end(kv: torch.Tensor) -> None:
    torch.manual_seed(2)
    last, heads = kv.shape[1] // BLOCK - 1, len(kv) // 2
    kv[:, last * BLOCK :] = torch.randn(len(kv), BLOCK, DIM)
    row, q = Row(0, 1, BLOCK - 1, (last,), DRAW), torch.randn(1, heads, DIM).half()
    work = work_list([row], plan_kv_spans([row], BLOCK), Tables().step([row]), BLOCK, Tiling(1, 64, 16, fill=1))
    arrays = (work.items, work.rows, work.blocks, work.parts, work.part_slots, work.counts)
    partial, lse = torch.empty(1, heads, DIM), torch.empty(1, heads)
    attn_items(q, kv, Work(*map(torch.from_numpy, arrays)), torch.empty(1), partial, lse, block_size=BLOCK, scale=0.25)
    keys, values = kv[:, last * BLOCK :].double().chunk(2)
    expected = reference.prefill_attn(q.double(), keys, values, torch.arange(BLOCK), BLOCK - 1, 0.25)
    torch.testing.assert_close(partial.double(), expected, rtol=4e-3, atol=4e-3)


def test_copying_from_the_far_end(kv: torch.Tensor) -> None:
    last = kv.shape[1] // BLOCK - 1
    kv[:, last * BLOCK :] = torch.randn(len(kv), BLOCK, DIM)
    copy_blocks(kv.unsqueeze(0), torch.tensor([[last, 3]], dtype=torch.int32), BLOCK)
    assert torch.equal(kv[:, 3 * BLOCK : 4 * BLOCK], kv[:, last * BLOCK :])
