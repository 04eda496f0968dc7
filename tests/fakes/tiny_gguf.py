"""GGUF files of small models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from transformers import PreTrainedModel

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    stem, _, ending = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, number, role = stem.split(".", 3)
        return f"blk.{number}.{_NAMES[role]}.{ending}"
    return f"{_NAMES[stem]}.{ending}"


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    arch: str,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    **extra: Any,
) -> None:
    """Write a model as llama.cpp's converter does: with its names, and for some its order of query and key rows."""
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_key_length(model.model.layers[0].self_attn.head_dim)
    writer.add_eos_token_id(2)
    for key, value in extra.items():
        if isinstance(value, np.ndarray):
            writer.add_tensor(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_string(key, value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if arch in ("llama", "smollm3") and (".q_proj" in name or ".k_proj" in name):
            heads = config.num_attention_heads if ".q_proj" in name else config.num_key_value_heads
            halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        if values.ndim == 2 and kind != gguf.GGMLQuantizationType.F32 and values.shape[-1] % 32 == 0:
            writer.add_tensor(_gguf_name(name), gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(_gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
