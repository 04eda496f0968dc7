"""What a decoder of the Llama family is made of, read from a config.json or from GGUF metadata.

Both readers refuse what the decoder does not carry out (an architecture, a rope scaling, a sliding
window, a quantization): a field that changes the numbers is honoured or refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import ModelError


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Rotary frequencies divided by one factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling: low frequencies divided by `factor`, high ones kept, a ramp between the two."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


Scaling = LinearScaling | Llama3Scaling


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The sizes and switches of one model; `context` is the longest sequence it was made for, in tokens.

    qkv_bias, output_bias, mlp_bias: these products add a bias. qk_norm: queries and keys pass an RMS norm
    per head before the rotation (Qwen3). tied: the head is the embedding. eos: ids that end an answer.
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

    def __post_init__(self) -> None:
        sizes = (self.vocab, self.hidden, self.layers, self.heads, self.kv_heads, self.intermediate, self.context)
        if min(sizes) < 1 or self.heads % self.kv_heads or self.head_dim < 2 or self.head_dim % 2:
            raise ModelError(f"the model's sizes do not fit together: {self}")
        if not (self.eps > 0 and self.rope_theta > 0):
            raise ModelError(f"rms_norm_eps ({self.eps}) and rope_theta ({self.rope_theta}) must be above 0")

    @property
    def kv_values_per_token(self) -> int:
        """Numbers of the KV cache that one token takes, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim


_FAMILY = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


class _Fields:
    """A config as read, with typed access: a missing or wrong field is a ModelError that names it."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def whole(self, key: str, default: int | None = None) -> int:
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool):
            raise ModelError(f"{self._where}: {key} must be a whole number, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ModelError(f"{self._where}: {key} must be a number, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise ModelError(f"{self._where}: {key} must be true or false, not {value!r}")
        return value

    def refuse(self, what: str) -> ModelError:
        return ModelError(f"{self._where}: {what}")


def spec_from_hf(config: Mapping[str, Any], eos: Any = None) -> ModelSpec:
    """Read a Hugging Face config.json; `eos` is eos_token_id of generation_config.json, which goes first.

    Understands both ways of writing rope settings (rope_parameters, and rope_theta with rope_scaling).
    Raises ModelError for another architecture and for whatever the decoder cannot carry out.
    """
    f = _Fields(config, "config.json")
    named = f.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else None
    family = _FAMILY.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise f.refuse(f"architecture {architecture!r} is not supported (supported: {', '.join(_FAMILY)})")
    if f.get("quantization_config") is not None:
        raise f.refuse("quantized checkpoints are not supported; use unquantized safetensors or a GGUF")
    if (act := f.get("hidden_act")) not in (None, "silu"):
        raise f.refuse(f"activation {act!r} is not supported (silu is)")
    window_used = f.flag("use_sliding_window", default=False) if family in ("qwen2", "qwen3") else True
    if window_used and f.get("sliding_window") is not None:
        raise f.refuse("sliding-window attention is not supported")
    if "sliding_attention" in (f.get("layer_types") or ()):
        raise f.refuse("sliding-window attention is not supported")
    theta, scaling = _hf_rope(config, f)
    attention_bias = f.flag("attention_bias", default=False)
    heads, hidden = f.whole("num_attention_heads"), f.whole("hidden_size")
    return ModelSpec(
        architecture=str(architecture),
        vocab=f.whole("vocab_size"),
        hidden=hidden,
        layers=f.whole("num_hidden_layers"),
        heads=heads,
        kv_heads=f.whole("num_key_value_heads", default=heads),
        head_dim=f.whole("head_dim", default=hidden // max(heads, 1)),
        intermediate=f.whole("intermediate_size"),
        eps=f.number("rms_norm_eps", default=1e-6),
        rope_theta=theta,
        scaling=scaling,
        context=f.whole("max_position_embeddings", default=2048),
        tied=f.flag("tie_word_embeddings", default=False),
        qkv_bias=family == "qwen2" or attention_bias,
        output_bias=family != "qwen2" and attention_bias,
        mlp_bias=f.flag("mlp_bias", default=False),
        qk_norm=family == "qwen3",
        eos=_ids(eos if eos is not None else f.get("eos_token_id"), f),
    )


def _hf_rope(config: Mapping[str, Any], f: _Fields) -> tuple[float, Scaling | None]:
    """Base frequency and scaling; both layouts of the settings say the same."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise f.refuse(f"rope settings must be an object, not {rope!r}")
    stated = {key: value for key, value in rope.items() if value is not None}
    merged = _Fields({"rope_theta": config.get("rope_theta"), **stated}, "rope")
    partial = merged.number("partial_rotary_factor", f.number("partial_rotary_factor", default=1.0))
    if partial != 1.0:
        raise f.refuse(f"partial rotary embedding ({partial}) is not supported")
    theta = merged.number("rope_theta", default=10000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, LinearScaling(merged.number("factor"))
    if kind == "llama3":
        return theta, Llama3Scaling(
            factor=merged.number("factor"),
            low_freq_factor=merged.number("low_freq_factor"),
            high_freq_factor=merged.number("high_freq_factor"),
            original_context=merged.whole("original_max_position_embeddings"),
        )
    raise f.refuse(f"rope scaling {kind!r} is not supported (default, linear and llama3 are)")


def _ids(value: Any, f: _Fields) -> frozenset[int]:
    values = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        raise f.refuse(f"eos_token_id must be a number or a list of numbers, not {value!r}")
    return frozenset(values)


_GGUF_FAMILY = {"llama", "qwen2", "qwen3"}


def spec_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> ModelSpec:
    """Read GGUF metadata; `tensors` are the file's tensors with their shapes in torch's order.

    What GGUF leaves unsaid (vocabulary, biases, a tied head) is taken from the tensors that are there.
    Raises ModelError for another architecture and for whatever the decoder cannot carry out.
    """
    arch = metadata.get("general.architecture")
    if arch not in _GGUF_FAMILY:
        known = ", ".join(sorted(_GGUF_FAMILY))
        raise ModelError(f"GGUF architecture {arch!r} is not supported (supported: {known})")
    f = _Fields({k.removeprefix(f"{arch}."): v for k, v in metadata.items()}, "GGUF metadata")
    if f.whole("expert_count", default=0):
        raise f.refuse("mixtures of experts are not supported")
    if f.get("attention.sliding_window"):
        raise f.refuse("sliding-window attention is not supported")
    scaling: Scaling | None = None
    if (kind := f.get("rope.scaling.type")) == "linear":
        scaling = LinearScaling(f.number("rope.scaling.factor"))
    elif kind not in (None, "none"):
        raise f.refuse(f"rope scaling {kind!r} is not supported (linear, and llama3 as rope_freqs, are)")
    elif f.number("rope.scale_linear", default=1.0) != 1.0:
        scaling = LinearScaling(f.number("rope.scale_linear"))
    embedding = tensors.get("token_embd.weight", ())
    if len(embedding) != 2:
        raise f.refuse("the tensor token_embd.weight is missing or not a matrix")
    hidden, heads = f.whole("embedding_length"), f.whole("attention.head_count")
    head_dim = f.whole("attention.key_length", default=hidden // max(heads, 1))
    if f.whole("attention.value_length", default=head_dim) != head_dim:
        raise f.refuse("keys and values of different widths are not supported")
    if f.whole("rope.dimension_count", default=head_dim) != head_dim:
        raise f.refuse("partial rotary embedding is not supported")
    ends = [f.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return ModelSpec(
        architecture=str(arch),
        vocab=embedding[0],
        hidden=hidden,
        layers=f.whole("block_count"),
        heads=heads,
        kv_heads=f.whole("attention.head_count_kv", default=heads),
        head_dim=head_dim,
        intermediate=f.whole("feed_forward_length"),
        eps=f.number("attention.layer_norm_rms_epsilon"),
        rope_theta=f.number("rope.freq_base", default=10000.0),
        scaling=scaling,
        context=f.whole("context_length"),
        tied="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        eos=_ids([v for v in ends if v is not None], f),
    )
