"""Norm, rotation and storing of queries, keys and values against the plain reference and the CPU's backend."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.kernels import reference
from engine.kernels.qkv_rope_store import qkv_rope_store, store
from engine.models.rope import rotate_

CLOSE = {torch.float32: 1e-5, torch.float16: 2e-3}
SLOTS = 50


class Case:
    """A step's product of queries, keys and values, a cache and the angles of 100 positions."""

    def __init__(self, tokens: int, queries: int, keys: int, head_dim: int, dtype: torch.dtype) -> None:
        torch.manual_seed(tokens)
        self.qkv = torch.randn(tokens, (queries + 2 * keys) * head_dim).to(dtype)
        self.kv = torch.randn(2 * keys, SLOTS, head_dim).to(dtype)
        angles = torch.randn(100, head_dim // 2) * 3
        self.cos, self.sin = angles.cos(), angles.sin()
        self.positions = torch.randint(100, (tokens,))
        self.slots = torch.randperm(SLOTS)[:tokens]
        self.q = torch.zeros(tokens, queries, head_dim, dtype=dtype)
        self.norms = {"q_norm": torch.randn(head_dim), "k_norm": torch.randn(head_dim), "eps": 1e-5}

    def check(self, *, rotated: bool = True, normed: bool = False) -> None:
        """Run kernel and reference; queries and the whole cache agree, and values are stored as they were."""
        cos, sin = (self.cos, self.sin) if rotated else (None, None)
        norms: dict[str, Any] = self.norms if normed else {}
        kv, q = self.kv.double(), self.q.double()
        exact: dict[str, Any] = {
            name: each.double() if isinstance(each, torch.Tensor) else each for name, each in norms.items()
        }
        wide_cos, wide_sin = (None if table is None else table.double() for table in (cos, sin))
        qkv = self.qkv.double()
        reference.qkv_rope_store(qkv, wide_cos, wide_sin, self.positions, self.slots, kv, q, **exact)
        qkv_rope_store(self.qkv, cos, sin, self.positions, self.slots, self.kv, self.q, **norms)
        close = CLOSE[self.qkv.dtype]
        torch.testing.assert_close(self.q.double(), q, rtol=close, atol=close)
        torch.testing.assert_close(self.kv.double(), kv, rtol=close, atol=close)
        values = slice(len(kv) // 2, None)
        assert torch.equal(self.kv[values].double(), kv[values])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("rotated", [False, True])
def test_each_form(dtype: torch.dtype, normed: bool, rotated: bool) -> None:
    Case(7, 6, 2, 16, dtype).check(rotated=rotated, normed=normed)


@pytest.mark.parametrize("heads", [(1, 1), (9, 3), (14, 2), (32, 8), (71, 1)])
@pytest.mark.parametrize("head_dim", [16, 80, 256])
def test_heads_of_any_number_and_size(heads: tuple[int, int], head_dim: int) -> None:
    Case(2, *heads, head_dim, torch.float32).check(normed=True)


def test_rotation_is_that_of_the_cpu() -> None:
    case = Case(5, 4, 2, 32, torch.float32)
    heads = case.qkv.view(5, 8, 32)[:, :4].clone()
    rotate_(heads, torch.complex(case.cos, case.sin)[case.positions].unsqueeze(1))
    case.check()
    torch.testing.assert_close(case.q, heads, rtol=1e-6, atol=1e-6)


def test_a_slot_below_0_stores_nothing() -> None:
    case = Case(4, 2, 1, 16, torch.float32)
    case.slots[1] = -1
    before = case.kv.clone()
    case.check()
    written = case.slots[case.slots >= 0]
    untouched = [slot for slot in range(SLOTS) if slot not in written.tolist()]
    assert torch.equal(case.kv[:, untouched], before[:, untouched])


def test_queries_may_go_where_they_were() -> None:
    case = Case(6, 4, 2, 16, torch.float32)
    shared = case.qkv.clone()
    inside = shared.view(6, 8, 16)[:, :4]
    qkv_rope_store(shared, case.cos, case.sin, case.positions, case.slots, case.kv.clone(), inside)
    case.check()
    assert torch.equal(inside, case.q)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_storing_alone_takes_heads_in_any_order_of_memory(dtype: torch.dtype) -> None:
    kv = torch.zeros(6, SLOTS, 20, dtype=dtype)
    new = torch.randn(6, 9, 20).to(dtype).transpose(0, 1)  # [T, 2K, D], a head's tokens together
    slots = torch.randperm(SLOTS)[:9]
    slots[4] = -1
    store(new, slots, kv)
    expected = torch.zeros_like(kv)
    kept = slots >= 0
    expected[:, slots[kept]] = new[kept].transpose(0, 1)
    assert torch.equal(kv, expected)
