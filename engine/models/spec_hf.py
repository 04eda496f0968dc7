"""The Llama family's sizes from a Hugging Face config.json.

What the decoder does not support (a rope scaling, an activation, a quantization) is refused: a field that changes the
numbers is honoured or refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import ModelError
from engine.models.fields import Fields
from engine.models.spec import LinearScaling, Llama3Scaling, ModelSpec, Scaling

_FAMILY = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "SmolLM3ForCausalLM": "smollm3",
}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_DEFAULT_WINDOW = {"mistral": 4096, "qwen2": 4096, "qwen3": 4096}  # if the config has no such key
_DEFAULT_THETA = {"smollm3": 2_000_000.0}  # the others': 10,000


class Unsupported(ModelError):
    """A model that may be complete and valid, but that the engine's own decoder does not support."""


def spec_from_hf(config: Mapping[str, Any], eos: Any = None) -> ModelSpec:
    """Read a Hugging Face config.json; `eos` is eos_token_id of generation_config.json, which takes precedence.

    Understands both ways of writing rope settings (rope_parameters, and rope_theta with rope_scaling). Raises
    Unsupported for another architecture and for whatever the decoder does not support, ModelError for what cannot be
    valid.
    """
    f = Fields(config, "config.json")
    named = f.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else None
    family = _FAMILY.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise Unsupported(f"config.json: architecture {architecture!r} is not supported ({', '.join(_FAMILY)} are)")
    if f.get("quantization_config") is not None:
        raise f.refuse("quantized checkpoints are not supported; use unquantized safetensors or a GGUF")
    if (act := f.get("hidden_act")) not in (None, "silu"):
        raise Unsupported(f"config.json: activation {act!r} is not supported (silu is)")
    theta, scaling = _hf_rope(config, f, family)
    attention_bias = f.flag("attention_bias", default=False)
    heads, hidden, layers = f.whole("num_attention_heads"), f.whole("hidden_size"), f.layers("num_hidden_layers")
    unrotated = _unrotated(f, layers) if family == "smollm3" else frozenset()
    return ModelSpec(
        architecture=str(architecture),
        vocab=f.whole("vocab_size"),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=f.whole("num_key_value_heads", default=heads),
        head_dim=f.whole("head_dim", default=hidden // max(heads, 1)),
        intermediate=f.whole("intermediate_size"),
        eps=f.number("rms_norm_eps", default=1e-6),
        rope_theta=theta,
        scaling=scaling,
        context=f.whole("max_position_embeddings", default=2048),
        tied=f.flag("tie_word_embeddings", default=family == "smollm3"),
        qkv_bias=family == "qwen2" or attention_bias,
        output_bias=family != "qwen2" and attention_bias,
        mlp_bias=f.flag("mlp_bias", default=False),
        qk_norm=family == "qwen3",
        eos=f.ids("eos_token_id", eos if eos is not None else f.get("eos_token_id")),
        windows=_windows(config, f, family, layers, unrotated),
        unrotated=unrotated,
    )


def _unrotated(f: Fields, layers: int) -> frozenset[int]:
    """Return SmolLM3's layers without rotation: given one by one (0 means without rotation), or as every n-th layer."""
    named = f.get("no_rope_layers")
    if named is None:
        every = f.whole("no_rope_layer_interval", default=4)
        return frozenset(range(every - 1, layers, max(every, 1)))
    if not isinstance(named, list) or len(named) != layers:
        raise f.refuse(f"no_rope_layers must be a list of {layers} numbers, not {named!r}")
    return frozenset(layer for layer, rotated in enumerate(named) if not rotated)


def _windows(
    config: Mapping[str, Any], f: Fields, family: str, layers: int, unrotated: frozenset[int]
) -> tuple[int | None, ...]:
    """Return each layer's sliding window as transformers' classes of the families place it; empty if none has one.

    Mistral's window applies to all layers. Qwen's and SmolLM3's must be switched on, and applies to the layers that
    layer_types names; without layer_types, to those from max_window_layers on, and to SmolLM3's unrotated ones.
    """
    window = f.get("sliding_window") if "sliding_window" in config else _DEFAULT_WINDOW.get(family)
    if window is not None:
        window = f.whole("sliding_window", default=window)
    kinds = f.get("layer_types")
    known = isinstance(kinds, list) and len(kinds) == layers and all(kind in (_FULL, _SLIDING) for kind in kinds)
    if kinds is not None and not known:
        raise f.refuse(f"layer_types must name {layers} layers, each {_FULL} or {_SLIDING}, not {kinds!r}")
    if family == "mistral":
        return () if window is None else (window,) * layers
    if family == "llama" or not f.flag("use_sliding_window", default=False):
        if family == "llama" and (window is not None or _SLIDING in (kinds or ())):
            raise Unsupported("config.json: sliding windows are not supported for this architecture")
        return ()
    if kinds is not None:
        sliding = {layer for layer, kind in enumerate(kinds) if kind == _SLIDING}
    elif family == "smollm3":
        sliding = set(unrotated)
    else:
        sliding = set(range(f.whole("max_window_layers", default=28), layers))
    if window is None or not sliding:
        return ()
    return tuple([window if layer in sliding else None for layer in range(layers)])


def _hf_rope(config: Mapping[str, Any], f: Fields, family: str) -> tuple[float, Scaling | None]:
    """Return base frequency and scaling; both layouts of the settings mean the same."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise f.refuse(f"rope settings must be an object, not {rope!r}")
    if nested := [key for key, value in rope.items() if isinstance(value, Mapping)]:
        raise Unsupported(f"config.json: rope settings of each kind of layer ({', '.join(nested)}) are not supported")
    stated = {key: value for key, value in rope.items() if value is not None}
    merged = Fields({"rope_theta": config.get("rope_theta"), **stated}, "rope")
    partial = merged.number("partial_rotary_factor", f.number("partial_rotary_factor", default=1.0))
    if partial != 1.0:
        raise Unsupported(f"config.json: partial rotary embedding ({partial}) is not supported")
    theta = merged.number("rope_theta", default=_DEFAULT_THETA.get(family, 10_000.0))
    kind = stated.get("rope_type", stated.get("type", "default"))
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
    raise Unsupported(f"config.json: rope scaling {kind!r} is not supported (default, linear and llama3 are)")
