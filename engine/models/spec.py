"""What a model is made of, as plain values: what every model's attention and cache need, and the Llama family's sizes.

spec_hf.py and spec_gguf.py read the latter from a config.json and from GGUF metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from engine.errors import ModelError


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One layer's attention: `heads` query heads in groups over `kv_heads` key (and value) heads of `head_dim`.

    Scores are multiplied by `scale`. window: a query sees that many keys, the last of them its own; None for
    all. softcap: a score s becomes softcap * tanh(s / softcap).
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None


def kv_values_per_token(layers: tuple[AttentionSpec, ...]) -> int:
    """Numbers of the KV cache that one token takes, over all layers."""
    return sum(2 * layer.kv_heads * layer.head_dim for layer in layers)


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Rotary frequencies divided by one factor."""

    factor: float

    def __post_init__(self) -> None:
        _refuse_no_factor(self.factor)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling: low frequencies divided by `factor`, high ones kept, a ramp between the two."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    def __post_init__(self) -> None:
        _refuse_no_factor(self.factor)


def _refuse_no_factor(factor: float) -> None:
    if not 0 < factor < inf:
        raise ModelError(f"rope scaling: the factor must be positive, not {factor:g}")


Scaling = LinearScaling | Llama3Scaling


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The sizes and switches of one model; `context` is the longest sequence it was made for, in tokens.

    qkv_bias, output_bias, mlp_bias: these products add a bias. qk_norm: queries and keys pass an RMS norm
    per head before the rotation (Qwen3). tied: the head is the embedding. eos: ids that end an answer.
    windows: each layer's sliding window; empty where no layer has one. unrotated: layers whose queries and
    keys are not rotated (SmolLM3).
    """

    architecture: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float
    rope_theta: float
    scaling: Scaling | None
    context: int
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos: frozenset[int]
    windows: tuple[int | None, ...] = ()
    unrotated: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        sizes = (self.vocab, self.hidden, self.layers, self.heads, self.kv_heads, self.intermediate, self.context)
        if min(sizes) < 1 or self.heads % self.kv_heads or self.head_dim < 2 or self.head_dim % 2:
            raise ModelError(f"the model's sizes do not fit together: {self}")
        if not (self.eps > 0 and self.rope_theta > 0):
            raise ModelError(f"rms_norm_eps ({self.eps}) and rope_theta ({self.rope_theta}) must be above 0")
        if self.windows and (len(self.windows) != self.layers or any(w is not None and w < 1 for w in self.windows)):
            raise ModelError(f"{self.layers} layers, but sliding windows {self.windows}")

    @property
    def attention(self) -> tuple[AttentionSpec, ...]:
        """What each layer's attention is."""
        windows = self.windows or (None,) * self.layers
        scale = self.head_dim**-0.5
        return tuple([AttentionSpec(self.heads, self.kv_heads, self.head_dim, scale, window) for window in windows])
