"""Models through transformers' classes: what is refused and why, and what the survey finds out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING
from transformers.utils import logging as transformers_logging

from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner
from engine.errors import ConfigError, ModelError
from engine.models.bridge import Bridge
from engine.models.load import load_model
from engine.models.spec import AttentionSpec
from tests.fakes.tiny_models import Scorer, reference_logits, save

SLIDING, FULL = "sliding_attention", "full_attention"


def _load(folder: Path, max_model_len: int | None = None) -> Bridge:
    return Bridge(folder, torch.float32, max_model_len)


def _edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_what_the_survey_finds(tmp_path: Path) -> None:
    save(tmp_path, "gemma2", sliding_window=8, head_dim=8, query_pre_attn_scalar=16, attn_logit_softcapping=20.0)
    model = _load(tmp_path)
    sliding = AttentionSpec(heads=6, kv_heads=2, head_dim=8, scale=0.25, window=8, softcap=20.0)
    everything = AttentionSpec(heads=6, kv_heads=2, head_dim=8, scale=0.25, softcap=20.0)
    assert model.attention == (sliding, everything, sliding)
    assert (model.vocab, model.context, model.eos) == (97, 256, frozenset({2}))


def test_keys_wider_than_values_are_padded(tmp_path: Path) -> None:
    latent: dict[str, Any] = {
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
    }
    experts: dict[str, Any] = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2}
    save(tmp_path, "deepseek_v3", num_key_value_heads=6, moe_intermediate_size=32, **latent, **experts)
    assert {(layer.kv_heads, layer.head_dim) for layer in _load(tmp_path).attention} == {(6, 24)}


def test_a_window_that_only_the_mask_knows(tmp_path: Path) -> None:
    experts: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    save(tmp_path, "qwen2_moe", use_sliding_window=True, sliding_window=8, layer_types=[FULL, SLIDING, FULL], **experts)
    assert [layer.window for layer in _load(tmp_path).attention] == [None, 8, None]


HYBRID = {"layer_types": ["conv", FULL, FULL], "block_auto_adjust_ff_dim": False}


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("mamba", {}, "keeps state besides keys and values"),
        ("bloom", {}, "not behind transformers' attention interface"),
        ("nemotron", {}, "does not hand on what the model's forward was given"),
        ("lfm2", HYBRID, "lets tokens see each other outside of attention"),
        ("roberta", {"is_decoder": True}, "positions of RobertaForCausalLM do not begin at 0"),
        (
            "llama4_text",
            {"intermediate_size_mlp": 64, "num_local_experts": 2, "attention_chunk_size": 8},
            "a mask that is neither causal nor a sliding window",
        ),
    ],
)
def test_models_that_the_interface_cannot_carry_are_refused(
    tmp_path: Path, kind: str, settings: dict[str, Any], reason: str
) -> None:
    save(tmp_path, kind, **settings)
    with pytest.raises(ModelError, match=reason):
        load_model(tmp_path, torch.float32, None)


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("t5", {}, "has an encoder"),
        ("t5", {"architectures": 5}, "t5 has an encoder"),
        ("gpt2", {"n_layer": 1 << 40}, "n_layer is 1099511627776, which no model has"),
        ("gemma3", {"text_config": {"num_hidden_layers": 1 << 40}}, "num_hidden_layers is 1099511627776"),
        ("vit", {}, "no causal language model of type vit"),
        ("gpt_oss", {"quantization_config": {"quant_method": "fp8"}}, "quantized checkpoints are not supported"),
    ],
)
def test_kinds_of_models_are_refused_by_their_config(
    tmp_path: Path, kind: str, settings: dict[str, Any], reason: str
) -> None:
    save(tmp_path, "gpt2")
    CONFIG_MAPPING[kind]().save_pretrained(tmp_path)
    _edit_config(tmp_path, **settings)
    with pytest.raises(ModelError, match=reason):
        load_model(tmp_path, torch.float32, None)


def test_code_of_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    save(tmp_path, "gpt2")
    ran = tmp_path / "ran"
    (tmp_path / "own.py").write_text(f"open({str(ran)!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    code = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    _edit_config(tmp_path, model_type="own", architectures=["OwnForCausalLM"], auto_map=code)
    with pytest.raises(ModelError, match="transformers cannot read it"):
        load_model(tmp_path, torch.float32, None)
    # A kind that transformers knows runs by its own code, whatever the checkpoint brings along.
    _edit_config(tmp_path, model_type="gpt2", architectures=["GPT2LMHeadModel"])
    load_model(tmp_path, torch.float32, None)
    assert not ran.exists()


def test_tensors_must_be_those_of_the_config(tmp_path: Path) -> None:
    save(tmp_path, "gpt2")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    norm = tensors.pop("transformer.ln_f.weight")
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 tensors: transformer\.ln_f\.weight"):
        _load(tmp_path)
    save_file(tensors | {"transformer.ln_f.weight": norm[:-1].clone()}, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="transformers cannot load"):
        _load(tmp_path)
    save_file(tensors | {"transformer.ln_f.weight": norm.to(torch.int8)}, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"transformer\.ln_f\.weight is of type I8; only unquantized floats"):
        _load(tmp_path)
    save_file(tensors | {"transformer.ln_f.weight": norm, "more": norm.clone()}, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="unknown to the model, 1 tensors: more"):
        _load(tmp_path)


def test_files_are_opened_before_anything_is_built(tmp_path: Path) -> None:
    save(tmp_path, "gpt2", shard="30KB")
    gone = sorted(tmp_path.glob("model-*.safetensors"))[1]
    content = gone.read_bytes()
    gone.write_bytes(content[:-1])
    with pytest.raises(ModelError, match="damaged or truncated"):
        _load(tmp_path)
    gone.unlink()
    with pytest.raises(ModelError, match=f"{gone.name} is missing"):
        _load(tmp_path)
    for file in tmp_path.glob("*.safetensors*"):
        file.unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(ModelError, match="contains only pickles"):
        _load(tmp_path)


@pytest.mark.parametrize("shard", ["1GB", "30KB"])
def test_a_loaded_model_does_not_depend_on_its_files(tmp_path: Path, shard: str) -> None:
    """A trainer may write its next checkpoint over the last one. The weights need no conversion here."""
    save(tmp_path, "gpt2", shard=shard)
    scorer, tokens = Scorer(tmp_path), list(range(3, 23))
    before = scorer.prompt(tokens, tuple(range(5)))
    for file in tmp_path.glob("*.safetensors"):
        with file.open("r+b") as opened:
            opened.write(bytes(file.stat().st_size))
    assert torch.equal(scorer.prompt(tokens, tuple(range(5))), before)
    model: Any = scorer.decoder
    assert model._model.lm_head.weight is model._model.transformer.wte.weight, "tied weights are copied twice"


def test_a_program_keeps_its_progress_bars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, "gpt2")
    capsys.readouterr()
    shown = transformers_logging.is_progress_bar_enabled()
    try:
        for switch in (transformers_logging.enable_progress_bar, transformers_logging.disable_progress_bar):
            switch()
            before = transformers_logging.is_progress_bar_enabled()
            _load(tmp_path)
            assert transformers_logging.is_progress_bar_enabled() == before
            assert capsys.readouterr().err == "", "the engine shows none"
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def test_the_longest_sequence(tmp_path: Path) -> None:
    save(tmp_path, "gpt2")
    assert _load(tmp_path, 40).context == 40
    with pytest.raises(ConfigError, match="max_model_len is 257; the model supports 256 tokens"):
        _load(tmp_path, 257)
    assert CpuRunner.load(EngineConfig(str(tmp_path), max_model_len=40, num_blocks=8)).ready.max_model_len == 40


def test_frequencies_that_change_with_the_batch_limit_the_sequence(tmp_path: Path) -> None:
    # Phi-3's longrope turns all positions by other frequencies as soon as one is beyond the original context.
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64, **factors}
    save(tmp_path, "phi3", sliding_window=None, original_max_position_embeddings=64, rope_parameters=rope)
    assert _load(tmp_path).context == 64
    with pytest.raises(ConfigError, match="the model supports 64"):
        _load(tmp_path, 65)


def test_frequencies_that_are_scaled_lengthen_the_sequence(tmp_path: Path) -> None:
    scaled = {"rope_theta": 10000.0, "factor": 4.0}
    yarn = scaled | {"rope_type": "yarn", "original_max_position_embeddings": 64}
    model, tokens = save(tmp_path, "llama", rope_parameters=yarn, max_position_embeddings=64), list(range(90)) * 2
    assert _load(tmp_path).context == 256
    with pytest.raises(ConfigError, match="the model supports 256"):
        _load(tmp_path, 257)
    logits = Scorer(tmp_path).prompt(tokens, tuple(range(60)))
    torch.testing.assert_close(logits, reference_logits(model, tokens), rtol=1e-4, atol=1e-4)
    save(tmp_path, "llama", rope_parameters=yarn, max_position_embeddings=300)  # the config may include the factor
    assert _load(tmp_path).context == 300
    save(tmp_path, "phi", rope_parameters=scaled | {"rope_type": "linear"}, max_position_embeddings=64)
    assert [_load(tmp_path, asked).context for asked in (None, 256)] == [64, 256]
    with pytest.raises(ConfigError, match="the model supports 256"):
        _load(tmp_path, 257)
    save(tmp_path, "phi", rope_parameters=scaled | {"rope_type": "dynamic"}, max_position_embeddings=64)
    with pytest.raises(ConfigError, match="the model supports 64"):
        _load(tmp_path, 65)


def test_the_kind_of_layer_with_the_shortest_sequence_decides(tmp_path: Path) -> None:
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0}
    rope = {"full_attention": linear, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    save(tmp_path, "gemma3_text", sliding_window=8, head_dim=8, rope_parameters=rope)
    with pytest.raises(ConfigError, match="the model supports 256"):
        _load(tmp_path, 257)


def test_other_dtypes(tmp_path: Path) -> None:
    save(tmp_path, "gemma2", sliding_window=8, head_dim=8)
    for dtype in ("bfloat16", "float16"):
        ready = CpuRunner.load(EngineConfig(str(tmp_path), dtype=dtype, num_blocks=8)).ready
        assert (ready.dtype, ready.kv_bytes_per_token) == (dtype, 3 * 2 * 2 * 8 * 2)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("afmoe", {}),
        ("jetmoe", {"num_key_value_heads": 3, "kv_channels": 8, "num_local_experts": 4, "num_experts_per_tok": 2}),
    ],
)
def test_models_that_view_what_attention_returns(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    model, tokens = save(tmp_path, kind, **settings), list(range(3, 23))
    logits = Scorer(tmp_path).prompt(tokens, tuple(range(5)))
    torch.testing.assert_close(logits, reference_logits(model, tokens), rtol=1e-4, atol=1e-4)


def test_the_packed_experts_of_gpt_oss(tmp_path: Path) -> None:
    # As published: MXFP4, two numbers of four bits a byte, 32 of them to one exponent (OCP Microscaling Formats 1.0).
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 32,
        "head_dim": 8,
        "num_hidden_layers": 2,
        "sliding_window": 8,
    }
    model = save(tmp_path, "gpt_oss", num_local_experts=4, num_experts_per_tok=2, **sizes)
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    meant = torch.tensor([*positive, *(-value for value in positive)])
    file = tmp_path / "model.safetensors"
    tensors, unpacked = load_file(file), {}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, rows, columns = tensors.pop(name).shape
        packed = torch.randint(0, 256, (experts, columns, rows // 32, 16), dtype=torch.uint8)
        exponents = torch.randint(122, 126, (experts, columns, rows // 32), dtype=torch.uint8)
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = packed, exponents
        values = torch.stack((meant[(packed & 15).long()], meant[(packed >> 4).long()]), -1).flatten(-2)
        scaled = values * torch.exp2(exponents.float() - 127).unsqueeze(-1)
        unpacked[name] = scaled.view(experts, columns, rows).transpose(1, 2)
    save_file(tensors, file, metadata={"format": "pt"})
    _edit_config(tmp_path, quantization_config={"quant_method": "mxfp4"})
    model.load_state_dict(unpacked, strict=False)
    tokens = list(range(3, 23))
    logits = Scorer(tmp_path).prompt(tokens, tuple(range(5)))
    torch.testing.assert_close(logits, reference_logits(model, tokens), rtol=1e-4, atol=1e-4)
