"""The Llama family's sizes from GGUF metadata; what the decoder does not support is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import ModelError
from engine.models.fields import Fields
from engine.models.spec import LinearScaling, ModelSpec, Scaling

_GGUF_FAMILY = {"llama", "qwen2", "qwen3", "smollm3"}
_ENDS = {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>"}
"""Tokens that end an answer wherever they exist. A file may not name all; llama.cpp knows them by their texts, too."""
_SMOLLM3_UNROTATED = 4  # every 4th layer is not rotated; llama.cpp knows it by the architecture's name, not the file


def spec_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> ModelSpec:
    """Read GGUF metadata; `tensors` are the file's tensors with their shapes in torch's order.

    What GGUF does not state (vocabulary, biases, a tied head) is derived from the tensors that exist. Raises ModelError
    for another architecture and for whatever the decoder does not support.
    """
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in _GGUF_FAMILY:
        known = ", ".join(sorted(_GGUF_FAMILY))
        raise ModelError(f"GGUF architecture {arch!r} is not supported (supported: {known})")
    f = Fields({k.removeprefix(f"{arch}."): v for k, v in metadata.items()}, "GGUF metadata")
    if f.whole("expert_count", default=0):
        raise f.refuse("mixtures of experts are not supported")
    if not f.flag("attention.causal", default=True):
        raise f.refuse("attention that is not causal is not supported")
    windows: tuple[int | None, ...] = ()
    layers = f.layers("block_count")
    if window := f.whole("attention.sliding_window", default=0):
        # Mistral's, which the converter calls llama. Files of other architectures do not say which layers have windows.
        if arch != "llama" or f.get("attention.sliding_window_pattern") is not None:
            raise f.refuse("this architecture's sliding windows are not supported")
        windows = (window,) * layers
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
    return ModelSpec(
        architecture=arch,
        vocab=embedding[0],
        hidden=hidden,
        layers=layers,
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
        eos=_ends(f, embedding[0]),
        windows=windows,
        unrotated=frozenset(range(_SMOLLM3_UNROTATED - 1, layers, _SMOLLM3_UNROTATED) if arch == "smollm3" else ()),
    )


def _ends(f: Fields, vocabulary: int) -> frozenset[int]:
    """Return the ids that end an answer: those that the file names, and those that are known by their texts.

    vocabulary: the model's size of it; the file may list further tokens.
    """
    named = [f.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    tokens = f.get("tokenizer.ggml.tokens")
    listed = tokens[:vocabulary] if isinstance(tokens, list) else []
    known = [number for number, token in enumerate(listed) if token in _ENDS]
    return f.ids("tokenizer.ggml.eos_token_id", [number for number in named if number is not None]).union(known)
