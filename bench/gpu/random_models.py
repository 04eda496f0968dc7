"""Models of real shapes with random weights, made on the device: no file is read or written.

The same numbers go into the engine's decoder and into transformers' class of the model, so that the two can be
compared. Weights are scaled by the number of their inputs, so that activations keep their size through all layers and
neither attention nor the vocabulary's scores are flat: a wrong order or a wrong rotation shows.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from bench.gpu.cases import ModelShape
from engine.errors import ModelError
from engine.models.spec import ModelSpec
from engine.models.stored import Sizes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CONTEXT = 40960
_THETA, _EPS = 1e6, 1e-6
_SPREAD = 3.0  # standard deviation of the vocabulary's scores


def spec(model: ModelShape) -> ModelSpec:
    """Return the model as the engine's decoder takes it. No token ends an answer."""
    attention = model.attention
    return ModelSpec(
        architecture=model.architecture,
        vocab=model.vocab,
        hidden=model.hidden,
        layers=model.layers,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.dim,
        intermediate=model.intermediate,
        eps=_EPS,
        rope_theta=_THETA,
        scaling=None,
        context=_CONTEXT,
        tied=model.tied,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=model.architecture == "qwen3",
        eos=frozenset(),
    )


def shapes(model: ModelShape) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors by their Hugging Face names."""
    attention, hidden = model.attention, model.hidden
    q, kv = attention.heads * attention.dim, attention.kv_heads * attention.dim
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (model.vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    if not model.tied:
        found["lm_head.weight"] = (model.vocab, hidden)
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (model.intermediate, hidden),
        "mlp.up_proj": (model.intermediate, hidden),
        "mlp.down_proj": (hidden, model.intermediate),
    }
    if model.architecture == "qwen3":
        layer |= {"self_attn.q_norm": (attention.dim,), "self_attn.k_norm": (attention.dim,)}
    for number in range(model.layers):
        found |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    return found


def fill(name: str, out: torch.Tensor) -> None:
    """Fill `out` with a tensor's numbers. They depend on its name, shape and device only, not on the order of calls."""
    generator = torch.Generator(out.device).manual_seed(zlib.crc32(name.encode()))
    drawn = torch.empty(out.shape, dtype=torch.bfloat16 if out.ndim > 1 else torch.float32, device=out.device)
    if out.ndim == 1:
        drawn.normal_(1.0, 0.15, generator=generator)
    else:
        head = "embed_tokens" in name or "lm_head" in name
        drawn.normal_(0.0, (_SPREAD if head else 1.0) / math.sqrt(out.shape[-1]), generator=generator)
    out.copy_(drawn)


@dataclass(frozen=True, slots=True)
class RandomCheckpoint:
    """A model's tensors (engine.models.weights.Checkpoint), stored nowhere: each is drawn when it is read."""

    spec: ModelSpec
    names: frozenset[str]

    @property
    def sizes(self) -> Sizes:
        """There are no files."""
        return ()

    @classmethod
    def of(cls, model: ModelShape) -> RandomCheckpoint:
        """Return the checkpoint of a model."""
        return cls(spec(model), frozenset(shapes(model)))

    def demand(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ModelError for an unknown name, as Checkpoint.demand does; a tensor is drawn in any shape."""
        if name not in self.names:
            raise ModelError(f"the checkpoint has no tensor {name}")

    def read(self, name: str, out: torch.Tensor) -> None:
        """Fill `out` with a tensor, as Checkpoint.read does."""
        if name not in self.names:
            raise ModelError(f"the checkpoint has no tensor {name}")
        fill(name, out)

    def stored(self, name: str, shape: tuple[int, int]) -> None:
        """Return None: no tensor is stored anywhere."""


def twin(model: ModelShape, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Return transformers' class of the model with the same numbers."""
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

    settings: dict[str, Any] = {
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.attention.heads,
        "num_key_value_heads": model.attention.kv_heads,
        "head_dim": model.attention.dim,
        "max_position_embeddings": _CONTEXT,
        "rms_norm_eps": _EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": _THETA},
        "tie_word_embeddings": model.tied,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    config = Qwen3Config(**settings) if model.architecture == "qwen3" else LlamaConfig(**settings)
    with device:
        loaded: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    own = dict(loaded.named_parameters())
    missing = set(own) ^ set(shapes(model))
    if missing:
        raise ModelError(f"transformers' {type(loaded).__name__} has other tensors: {sorted(missing)[0]}")
    with torch.no_grad():
        for name, parameter in own.items():
            fill(name, parameter)
    return loaded.eval()
