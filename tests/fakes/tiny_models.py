"""Small models with random weights, saved by transformers like real checkpoints, and a way to score with the engine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from engine.attention.cache import KvCache
from engine.attention.compute import Attention
from engine.batch import Batch, Chunk
from engine.models.load import load_model
from engine.models.ops import TorchOps
from engine.models.rope import rotations

BLOCK = 4
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def make(kind: str = "llama", **settings: Any) -> PreTrainedModel:
    """A model of a transformers kind with the same random weights every time, including biases and norms."""
    torch.manual_seed(11)
    config = CONFIG_MAPPING[kind](**(SIZES | settings))
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Larger than transformers' initial values, so that attention is sharp and a wrong order shows.
            parameter.copy_(torch.randn_like(parameter) * 0.15 + (1.0 if parameter.ndim == 1 else 0.0))
    return model


def save(folder: Path, kind: str = "llama", *, shard: str = "1GB", **settings: Any) -> PreTrainedModel:
    """Write such a model to a folder as safetensors, and return it."""
    model = make(kind, **settings)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def reference_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """The logits of transformers for every position, [T, V] float32."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0].float()
    return logits


class Scorer:
    """One loaded model with a KV cache: the model part of the engine, without sampling."""

    def __init__(self, path: Path, *, dtype: torch.dtype = torch.float32, blocks: int = 64, block_size: int = BLOCK):
        self.decoder = load_model(path, dtype, None)
        self.cache = KvCache(self.decoder.attention, blocks, block_size, dtype)
        self.attention = Attention(self.decoder.attention, self.cache)

    def logits(self, batch: Batch) -> torch.Tensor:
        """Logits of every token of the batch, first those of the chunks, then those of the rows; [T, V] float32."""
        tokens = [token for chunk in batch.chunks for token in chunk.tokens] + [row.token for row in batch.rows]
        positions = [p for chunk in batch.chunks for p in range(chunk.start, chunk.start + len(chunk.tokens))]
        positions += [row.position for row in batch.rows]
        frequencies = self.decoder.frequencies
        with torch.inference_mode():
            turn = None if frequencies is None else rotations(frequencies, max(positions) + 1)[positions].unsqueeze(1)
            ops = TorchOps(partial(self.attention.run, self.attention.begin(batch)), turn, self.cache.dtype)
            x = self.decoder.run(torch.tensor(tokens), torch.tensor(positions), ops)
            return self.decoder.logits(x).float()

    def prompt(self, tokens: list[int], blocks: tuple[int, ...], start: int = 0) -> torch.Tensor:
        """Logits of a chunk that begins at position `start`."""
        return self.logits(Batch(chunks=(Chunk(0, tuple(tokens), start, blocks),)))
