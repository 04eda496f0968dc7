"""Reading checkpoints: every layout that is accepted, and the reason for every one that is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelError
from engine.models.llama import Decoder
from engine.models.spec import Llama3Scaling
from engine.models.spec_gguf import spec_from_gguf
from engine.models.spec_hf import spec_from_hf
from engine.models.stored import ordered, stacked
from engine.models.weights import open_checkpoint
from tests.fakes.tiny_gguf import write_gguf
from tests.fakes.tiny_models import LLAMA3, Scorer, make, reference_logits, save

TOKENS = list(range(1, 60, 3))
TABLE = tuple(range(16))


def _load(path: Path) -> None:
    with open_checkpoint(path) as checkpoint:
        Decoder(checkpoint, torch.float32, 64)


def _edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


# ---- Hugging Face folders


def test_shards(tmp_path: Path) -> None:
    model = save(tmp_path, shard="30KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    logits = Scorer(tmp_path).prompt(TOKENS, TABLE)
    torch.testing.assert_close(logits, reference_logits(model, TOKENS), rtol=1e-4, atol=1e-4)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save(tmp_path, shard="30KB")
    gone = sorted(tmp_path.glob("model-*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ModelError, match=f"{gone.name} is missing"):
        _load(tmp_path)


def test_an_index_may_not_leave_the_folder(tmp_path: Path) -> None:
    save(tmp_path, shard="30KB")
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = "../other/model.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="not a safetensors file in this folder"):
        _load(tmp_path)


def test_an_index_that_lies_is_refused(tmp_path: Path) -> None:
    save(tmp_path, shard="30KB")
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    where = content["weight_map"]
    other = next(file for file in where.values() if file != where["model.norm.weight"])
    index.write_text(json.dumps({"weight_map": where | {"model.norm.weight": other}}))
    with pytest.raises(ModelError, match=rf"model\.norm\.weight is not in {other}, where the index expects it"):
        _load(tmp_path)
    index.write_text(json.dumps({"weight_map": where | {"model.more.weight": other}}))
    with pytest.raises(ModelError, match=r"model\.more\.weight is not in"):
        _load(tmp_path)
    index.write_text(json.dumps({"weight_map": ["model.safetensors"]}))
    with pytest.raises(ModelError, match="no weight_map of file names"):
        _load(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    save(tmp_path, shard="30KB")
    first, second = sorted(tmp_path.glob("model-*.safetensors"))[:2]
    tensors = load_file(second)
    name, tensor = next(iter(load_file(first).items()))
    save_file(tensors | {name: tensor}, second)
    with pytest.raises(ModelError, match=f"is in {first.name} and in {second.name}"):
        _load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"data_offsets": [0, 1 << 40]},
        {"data_offsets": [1 << 40, (1 << 40) + 192]},
        {"data_offsets": [-192, 0]},
        {"shape": [1 << 40]},
        {"shape": [-48]},
        {"dtype": "F128"},
    ],
    ids=str,
)
def test_a_safetensors_file_whose_header_lies_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    save(tmp_path)
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["model.norm.weight"] |= change
    changed = json.dumps(header).encode()
    file.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + length :])
    with pytest.raises(ModelError, match="damaged or truncated"):
        _load(tmp_path)


@pytest.mark.parametrize("length", [0, 1 << 40, (1 << 64) - 1])
def test_a_safetensors_header_of_an_impossible_length_is_refused(tmp_path: Path, length: int) -> None:
    save(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + file.read_bytes()[8:])
    with pytest.raises(ModelError, match="damaged or truncated"):
        _load(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickles_are_refused(tmp_path: Path, name: str) -> None:
    save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({}, tmp_path / name)
    with pytest.raises(ModelError, match="can run any code"):
        _load(tmp_path)
    with pytest.raises(ModelError, match="can run any code"):
        _load(tmp_path / name)


@pytest.mark.parametrize("cut", [0, 4, 100, -1])
def test_cut_short_safetensors_are_refused(tmp_path: Path, cut: int) -> None:
    save(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ModelError, match="damaged or truncated"):
        _load(tmp_path)


def test_tensors_must_be_those_of_the_config(tmp_path: Path) -> None:
    save(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    norm = tensors.pop("model.norm.weight")
    save_file(tensors, file)
    with pytest.raises(ModelError, match=r"no tensor model\.norm\.weight"):
        _load(tmp_path)
    save_file(tensors | {"model.norm.weight": norm[:-1].clone()}, file)
    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \(47,\)"):
        _load(tmp_path)
    save_file(tensors | {"model.norm.weight": norm, "model.layers.0.adapter.weight": norm.clone()}, file)
    with pytest.raises(ModelError, match="adapter"):
        _load(tmp_path)
    save_file(tensors | {"model.norm.weight": norm.to(torch.int8)}, file)
    with pytest.raises(ModelError, match="only unquantized floats"):
        _load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture 'GPT2LMHeadModel' is not supported"),
        ({"architectures": None}, "architecture None is not supported"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized checkpoints"),
        ({"sliding_window": 4096}, "sliding windows are not supported for this architecture"),
        ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["chunked_attention"] * 3}, "layer_types must name 3"),
        ({"architectures": ["Qwen2ForCausalLM"], "layer_types": [["a"]] * 3}, "layer_types must name 3"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 0}, "sliding windows"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": "4096"}, "sliding_window must be a whole number"),
        ({"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1]}, "no_rope_layers must be a list of 3"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope scaling 'dynamic'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "each kind of layer"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0.0}}, "factor must be positive, not 0"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers must be a whole number, not '3'"),
        ({"num_key_value_heads": 4}, "sizes do not fit"),
        ({"rms_norm_eps": 0}, "must be above 0"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000.*, which no model has"),
        ({"rope_parameters": {"rope_theta": float("inf")}}, "rope_theta is inf, which no model has"),
        ({"rope_parameters": LLAMA3 | {"low_freq_factor": 0}}, "settings do not fit together"),
        ({"rope_parameters": LLAMA3 | {"high_freq_factor": 1.0}}, "settings do not fit together"),
        ({"max_position_embeddings": 10**400}, "max_position_embeddings is 1000.*, which no model has"),
        ({"num_hidden_layers": 1 << 31}, "num_hidden_layers is 2147483648, which no model has"),
        ({"vocab_size": 1 << 40}, r"embed_tokens.weight has shape \(97, 48\)"),
        ({"vocab_size": 1 << 61, "hidden_size": 1 << 61}, r"embed_tokens.weight has shape \(97, 48\)"),
        ({"head_dim": 1 << 40}, r"q_proj.weight has shape \(48, 48\)"),
        ({"intermediate_size": 1 << 40}, r"gate_proj.weight has shape \(64, 48\)"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
    ],
    ids=str,
)
def test_what_cannot_be_run_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    save(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    _edit_config(tmp_path, **changes)
    with pytest.raises(ModelError, match=reason):
        _load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_broken_config_is_refused(tmp_path: Path, content: bytes) -> None:
    save(tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        _load(tmp_path)


def test_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        _load(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        _load(tmp_path)
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(ModelError, match=r"neither a folder with a model nor a \.gguf file"):
        _load(tmp_path / "notes.txt")


def test_both_ways_of_writing_rope_settings() -> None:
    sizes = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 9,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    old = spec_from_hf(sizes | {"rope_theta": 500000.0, "rope_scaling": scaling})
    new = spec_from_hf(sizes | {"rope_parameters": {"rope_theta": 500000.0, **scaling}})
    assert old == new
    assert (new.rope_theta, new.scaling) == (500000.0, Llama3Scaling(32.0, 1.0, 4.0, 8192))
    named = scaling | {"type": "llama3", "rope_type": None}
    assert spec_from_hf(sizes | {"rope_theta": 500000.0, "rope_scaling": named}) == new
    assert spec_from_hf(sizes | {"rope_parameters": {"rope_theta": 500000.0, "rope_type": None}}).scaling is None


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "smollm3"])
def test_without_rope_settings_a_family_has_its_own_base_frequency(tmp_path: Path, kind: str) -> None:
    model = save(tmp_path, kind, head_dim=8)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.testing.assert_close(
        Scorer(tmp_path).prompt(TOKENS, TABLE), reference_logits(model, TOKENS), rtol=1e-4, atol=1e-4
    )


def test_a_context_times_an_endless_factor_is_a_number(tmp_path: Path) -> None:
    save(tmp_path)
    _edit_config(tmp_path, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 1e308})
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.spec.longest == 1 << 62


def test_the_generation_config_names_the_ends(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 9]}')
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.spec.eos == {5, 9}


# ---- GGUF


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 16}),
        ("smollm3", {"num_hidden_layers": 5}),
    ],
    ids=str,
)
def test_gguf_equals_transformers(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    model = make(kind, **settings)
    path = tmp_path / "model.gguf"
    write_gguf(path, model, kind)
    scorer = Scorer(path)
    assert scorer.decoder.eos == {2}
    torch.testing.assert_close(scorer.prompt(TOKENS, TABLE), reference_logits(model, TOKENS), rtol=1e-4, atol=1e-4)


def test_all_ends_of_a_gguf_end_an_answer(tmp_path: Path) -> None:
    # Of a text, of a turn, and (Llama 3.1's calls of built-in tools) of a message after which the turn goes on.
    path = tmp_path / "model.gguf"
    write_gguf(path, make(), "llama", **{"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 9})
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.spec.eos == {2, 5, 9}


def test_ends_that_a_gguf_does_not_name_are_known_by_their_texts(tmp_path: Path) -> None:
    # As those of Llama 3 do: one is named, while generation_config.json, which is not part of a GGUF, names all three.
    path = tmp_path / "model.gguf"
    tokens = ["a", "b", "</s>", "<|end_of_text|>", "<|start_header_id|>", "<|eom_id|>", "<|eot_id|>"]
    model = make()
    beyond = ["x"] * (model.config.vocab_size - len(tokens)) + ["<|im_end|>"]
    write_gguf(path, model, "llama", **{"tokenizer.ggml.tokens": tokens + beyond})
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.spec.eos == {2, 3, 5, 6}


def test_a_sliding_window_of_a_gguf_is_used(tmp_path: Path) -> None:
    # The converter calls a Mistral model llama.
    model = make("mistral", sliding_window=8)
    path = tmp_path / "model.gguf"
    write_gguf(path, model, "llama", **{"llama.attention.sliding_window": 8})
    logits = Scorer(path).prompt(TOKENS, TABLE)
    torch.testing.assert_close(logits, reference_logits(model, TOKENS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q4_0", "Q5_1", "F16", "BF16"])
def test_quantized_tensors_are_read_whole(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Pieces of a few lines, the last one shorter, and less than a line behind give what one call of the package gives.
    monkeypatch.setattr("engine.models.gguf_file._LINE", 96)
    monkeypatch.setattr("engine.models.gguf_file._PIECE", 96 * 8)
    model = make(hidden_size=64, num_attention_heads=4)
    path = tmp_path / "model.gguf"
    quantization = gguf.GGMLQuantizationType[kind]
    write_gguf(path, model, "llama", quantization)
    weight = model.state_dict()["model.layers.1.mlp.up_proj.weight"].numpy()
    expected = gguf.dequantize(gguf.quantize(weight, quantization), quantization)
    with open_checkpoint(path) as checkpoint:
        out = torch.empty(weight.shape)
        checkpoint.read("model.layers.1.mlp.up_proj.weight", out)
    assert np.array_equal(out.numpy(), expected)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q4_0", "Q5_0", "Q5_1", "BF16"])
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_what_stays_as_it_is_stored_is_what_is_read(tmp_path: Path, kind: str, arch: str) -> None:
    """To the bit, query and key rows in another order included; stacked and brought in order as read rows are."""
    model = make(arch, hidden_size=64, num_attention_heads=4)
    path = tmp_path / "model.gguf"
    write_gguf(path, model, arch, gguf.GGMLQuantizationType[kind])
    names = [f"model.layers.1.{name}.weight" for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj")]
    with open_checkpoint(path) as checkpoint:
        shapes = [tuple(model.state_dict()[name].shape) for name in names]
        read = [torch.empty(shape) for shape in shapes]
        for name, out in zip(names, read, strict=True):
            checkpoint.read(name, out)
        stored = [checkpoint.stored(name, shape) for name, shape in zip(names, shapes, strict=True)]
        with pytest.raises(ModelError, match="has shape"):
            checkpoint.stored(names[0], (1, 64))
        with pytest.raises(ModelError, match="no tensor"):
            checkpoint.stored("lm_head.bias", (1, 64))
    order = torch.randperm(sum(len(rows) for rows in read))
    whole = stacked(stored)
    assert whole is not None
    mine = ordered(whole, order)
    assert torch.equal(mine.float() if isinstance(mine, torch.Tensor) else mine.floats(), torch.cat(read)[order])


def test_floats_are_not_stored_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, make(hidden_size=64, num_attention_heads=4), "llama", gguf.GGMLQuantizationType.F16)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.stored("model.embed_tokens.weight", (97, 64)) is None


def test_rope_freqs_of_a_gguf_are_used(tmp_path: Path) -> None:
    # llama.cpp stores a llama3 scaling as one divisor per frequency.
    model = make(rope_parameters=LLAMA3)
    plain = 1.0 / 500.0 ** (np.arange(0, 8, 2, dtype=np.float32) / 8)
    factors = plain / model.model.rotary_emb.inv_freq.numpy()
    assert factors.max() > 1.5
    path = tmp_path / "model.gguf"
    write_gguf(path, model, "llama", **{"rope_freqs.weight": factors.astype(np.float32)})
    logits = Scorer(path).prompt(TOKENS, TABLE)
    torch.testing.assert_close(logits, reference_logits(model, TOKENS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("part", [0.0, 0.001, 0.02, 0.5, 0.999])
def test_a_cut_short_gguf_is_refused(tmp_path: Path, part: float) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, make(), "llama")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(ModelError, match=r"truncated|damaged|cannot be read"):
        _load(path)


def test_a_gguf_whose_directory_lies_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, make(), "llama")
    content = path.read_bytes()
    name = b"blk.2.ffn_down.weight"
    at = content.index(name) + len(name)
    # number of dimensions, two sizes, type, offset
    for place, value, reason in [
        (at + 4, 1 << 40, "truncated or its directory is wrong"),
        (at + 12, 0, "impossible shape"),
        (at + 20, 77, "unknown type"),
        (at + 24, 1 << 60, "truncated or its directory is wrong"),
    ]:
        width = 4 if place == at + 20 else 8
        path.write_bytes(content[:place] + value.to_bytes(width, "little") + content[place + width :])
        with pytest.raises(ModelError, match=reason):
            _load(path)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("llama.block_count", (1 << 32) - 1, "block_count is 4294967295, which no model has"),
        ("llama.attention.key_length", 1 << 31, r"q_proj.weight has shape \(48, 48\)"),
        ("llama.feed_forward_length", 1 << 31, r"gate_proj.weight has shape \(64, 48\)"),
    ],
)
def test_sizes_of_a_gguf_that_no_memory_holds_are_refused(tmp_path: Path, key: str, value: int, reason: str) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, make(), "llama")
    content = path.read_bytes()
    place = content.index(key.encode()) + len(key) + 4  # behind the type
    path.write_bytes(content[:place] + value.to_bytes(4, "little") + content[place + 4 :])
    with pytest.raises(ModelError, match=reason):
        _load(path)


def test_an_architecture_of_a_gguf_that_is_no_text_is_refused() -> None:
    with pytest.raises(ModelError, match=r"GGUF architecture \['llama'\] is not supported"):
        spec_from_gguf({"general.architecture": ["llama"]}, {})


@pytest.mark.parametrize(
    ("arch", "extra", "reason"),
    [
        ("gemma", {}, "GGUF architecture 'gemma' is not supported"),
        ("llama", {"split.count": 3}, "one of 3 parts of a model"),
        ("llama", {"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn'"),
        ("qwen2", {"qwen2.attention.sliding_window": 8}, "sliding windows are not supported"),
        ("llama", {"llama.attention.causal": False}, "attention that is not causal is not supported"),
        ("llama", {"blk.0.attn_sinks.weight": np.zeros(6, np.float32)}, "does not know"),
    ],
    ids=str,
)
def test_a_gguf_that_cannot_be_run_is_refused(tmp_path: Path, arch: str, extra: dict[str, Any], reason: str) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, make(), arch, **extra)
    with pytest.raises(ModelError, match=reason):
        _load(path)
