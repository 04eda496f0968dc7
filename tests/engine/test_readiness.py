"""What the core says about itself, of a model with layers of two kinds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from engine.attention.cache import KvCache
from engine.config import EngineConfig
from engine.messages import Ready
from engine.models.model import Model
from engine.models.spec import AttentionSpec
from engine.readiness import ready_of

LAYERS = (AttentionSpec(4, 2, 8, 1.0), AttentionSpec(4, 1, 16, 1.0, window=64), AttentionSpec(4, 4, 8, 1.0))


def said(dtype: torch.dtype = torch.float32, device: str = "cpu", **settings: Any) -> Ready:
    model = SimpleNamespace(vocab=97, context=640, eos=frozenset({2, 5}), attention=LAYERS)
    cache = SimpleNamespace(device=torch.device(device), blocks=33, block_size=8, dtype=dtype)
    return ready_of(EngineConfig("", **settings), cast(Model, model), cast(KvCache, cache), "native")


def test_all_that_is_said() -> None:
    assert said() == Ready(
        vocab_size=97,
        max_model_len=640,
        blocks=33,
        block_size=8,
        kv_bytes_per_token=2 * (2 * 8 + 1 * 16 + 4 * 8) * 4,
        eos_tokens=frozenset({2, 5}),
        device="cpu",
        dtype="float32",
        batch_tokens=1024,
        layers=3,
        kernels="native",
        quantization="none",
    )


@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 2), (torch.float16, 2), (torch.float32, 4)])
def test_a_token_takes_the_bytes_of_the_caches_type(dtype: torch.dtype, size: int) -> None:
    ready = said(dtype)
    assert (ready.dtype, ready.kv_bytes_per_token) == (str(dtype).split(".")[1], 128 * size)


def test_the_settings_and_the_device_say_the_rest() -> None:
    assert (said(device="cuda:0").device, said(device="cuda:0").batch_tokens) == ("cuda", 8192)
    assert said(quantization="int8").quantization == "int8"
    assert said(max_batch_tokens=300).batch_tokens == 300
