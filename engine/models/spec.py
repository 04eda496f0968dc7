"""The properties of a model as plain values: what every model's attention and cache need, and the Llama family's sizes.

spec_hf.py and spec_gguf.py read the latter from a config.json and from GGUF metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from engine.errors import ModelError

LONGEST = 2.0**62
"""Tokens: what a scaling multiplies is cut there, because its product may be infinite."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One layer's attention: `heads` query heads in groups over `kv_heads` key (and value) heads of `head_dim`."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """Scores are multiplied by it."""
    window: int | None = None
    """A query sees that many keys, of which its own is the last; None for all."""
    softcap: float | None = None
    """A score s becomes softcap * tanh(s / softcap)."""


def kv_bytes_per_token(layers: tuple[AttentionSpec, ...], itemsize: int) -> int:
    """Return how many bytes of the KV cache one token takes, over all layers, in numbers of `itemsize` bytes."""
    return sum(2 * layer.kv_heads * layer.head_dim for layer in layers) * itemsize


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Rotary frequencies divided by one factor."""

    factor: float

    def __post_init__(self) -> None:
        _refuse_no_factor(self.factor)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling: low frequencies are divided by `factor`, high ones are kept, with a ramp between the two."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    def __post_init__(self) -> None:
        _refuse_no_factor(self.factor)
        if not 0 < self.low_freq_factor < self.high_freq_factor or self.original_context < 1:
            raise ModelError(f"rope scaling: the settings do not fit together: {self}")


def _refuse_no_factor(factor: float) -> None:
    if not 0 < factor < inf:
        raise ModelError(f"rope scaling: the factor must be positive, not {factor:g}")


Scaling = LinearScaling | Llama3Scaling


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The sizes and switches of one model."""

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
    """The longest sequence that the model was made for, in tokens, without a linear scaling."""
    tied: bool
    """Whether the head is the embedding."""
    qkv_bias: bool
    """Whether the products for queries, keys and values add a bias."""
    output_bias: bool
    """Whether attention's output product adds a bias."""
    mlp_bias: bool
    """Whether the feed-forward products add a bias."""
    qk_norm: bool
    """Whether queries and keys pass an RMS norm per head before the rotation (Qwen3)."""
    eos: frozenset[int]
    """The ids that end an answer."""
    windows: tuple[int | None, ...] = ()
    """Each layer's sliding window; empty if no layer has one."""
    unrotated: frozenset[int] = frozenset()
    """The layers whose queries and keys are not rotated (SmolLM3)."""

    def __post_init__(self) -> None:
        sizes = (self.vocab, self.hidden, self.layers, self.heads, self.kv_heads, self.intermediate, self.context)
        if min(sizes) < 1 or self.heads % self.kv_heads or self.head_dim < 2 or self.head_dim % 2:
            raise ModelError(f"the model's sizes do not fit together: {self}")
        if not (self.eps > 0 and self.rope_theta > 0):
            raise ModelError(f"rms_norm_eps ({self.eps}) and rope_theta ({self.rope_theta}) must be above 0")
        if self.windows and (len(self.windows) != self.layers or any(w is not None and w < 1 for w in self.windows)):
            raise ModelError(f"{self.layers} layers, but sliding windows {self.windows}")

    @property
    def longest(self) -> int:
        """The longest sequence that may be asked for, in tokens: with a linear scaling, `factor` times the context."""
        factor = self.scaling.factor if isinstance(self.scaling, LinearScaling) else 1.0
        return max(self.context, int(min(self.context * factor, LONGEST)))

    @property
    def attention(self) -> tuple[AttentionSpec, ...]:
        """Each layer's attention."""
        windows = self.windows or (None,) * self.layers
        scale = self.head_dim**-0.5
        return tuple([AttentionSpec(self.heads, self.kv_heads, self.head_dim, scale, window) for window in windows])
