"""What the core says about itself once its model is loaded, the same for every backend."""

from __future__ import annotations

from engine.attention.cache import KvCache
from engine.config import EngineConfig
from engine.messages import Ready
from engine.models.model import Model
from engine.models.spec import kv_bytes_per_token


def ready_of(config: EngineConfig, model: Model, cache: KvCache, kernels: str) -> Ready:
    """Describe a loaded model and its cache. kernels: those that the model runs with."""
    device = cache.device.type
    return Ready(
        vocab_size=model.vocab,
        max_model_len=model.context,
        blocks=cache.blocks,
        block_size=cache.block_size,
        kv_bytes_per_token=kv_bytes_per_token(model.attention, cache.dtype.itemsize),
        eos_tokens=model.eos,
        device=device,
        dtype=str(cache.dtype).removeprefix("torch."),
        batch_tokens=config.batch_tokens(device),
        layers=len(model.attention),
        kernels=kernels,
        quantization=config.quantization or "none",
    )
