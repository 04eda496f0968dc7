"""LoRA adapters: in one batch with each other and the bare model, against weights merged in transformers."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.core import Core
from engine.cpu_runner import CpuRunner
from engine.errors import ModelError
from engine.messages import Add, Choice, Logprobs, Sampling
from engine.models.load import load_model
from tests.fakes.adapters import write_adapter
from tests.fakes.tiny_models import make, reference_logits, save

Modules = list[str]
LLAMA: Modules = [
    *(f"model.layers.{i}.self_attn.{p}_proj" for i in range(3) for p in "qkvo"),
    *(f"model.layers.{i}.mlp.{p}_proj" for i in (0, 2) for p in ("gate", "up", "down")),
]
PART: Modules = ["model.layers.1.self_attn.k_proj", "model.layers.1.mlp.up_proj"]
GPT2: Modules = [f"transformer.h.{i}.{p}" for i in range(3) for p in ("attn.c_attn", "mlp.c_proj")]
GEMMA: Modules = [f"model.layers.{i}.self_attn.{p}_proj" for i in range(3) for p in "qv"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _merge(model: torch.nn.Module, folder: Path, scale: float) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    for name, a in tensors.items():
        if not name.endswith("lora_A.weight"):
            continue
        named = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        weight = model.get_parameter(f"{named}.weight")
        delta = tensors[name.replace("lora_A", "lora_B")] @ a * scale
        with torch.no_grad():
            weight.add_(delta if weight.shape == delta.shape else delta.T)


@pytest.mark.parametrize(
    ("kind", "settings", "first", "second"),
    [
        ("llama", {}, LLAMA, PART),
        ("qwen3", {"head_dim": 16}, LLAMA, PART),
        ("gpt2", {}, GPT2, GPT2[:1]),
        ("gemma2", {"head_dim": 8, "sliding_window": 8}, GEMMA, GEMMA[:2]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_adapters_and_the_bare_model_in_one_batch(
    tmp_path: Path, kind: str, settings: dict[str, Any], first: Modules, second: Modules
) -> None:
    model = save(tmp_path / "model", kind, **settings)
    write_adapter(tmp_path / "a", model, first, 1)
    write_adapter(tmp_path / "b", model, second, 2, rank=2, use_rslora=True)
    config = EngineConfig(
        str(tmp_path / "model"),
        dtype="float32",
        block_size=4,
        num_blocks=100,
        max_sequences=8,
        max_batch_tokens=20,
        adapters=(("a", str(tmp_path / "a")), ("b", str(tmp_path / "b"))),
    )
    core = Core(config, CpuRunner.load(config))
    prompt = tuple(random.Random(3).randrange(3, 97) for _ in range(14))
    names = [None, "a", "b", "a"]
    for number, name in enumerate(names):
        choices = tuple(Choice(seed, 6, Sampling()) for seed in range(2))
        core.add(Add(number, prompt, choices, frozenset(), logprobs=2, adapter=name))
    drawn: dict[tuple[int, int], list[tuple[int, Logprobs]]] = {}
    while core.has_work:
        for token in core.step().tokens:
            assert token.logprobs is not None
            drawn.setdefault((token.group, token.choice), []).append((token.token, token.logprobs))
    for number, name in enumerate(names):
        merged = make(kind, **settings)
        if name is not None:
            _merge(merged, tmp_path / name, 8 / 4 if name == "a" else 8 / math.sqrt(2))
        for choice in range(2):
            answer = drawn[number, choice]
            tokens = [*prompt, *(token for token, _ in answer)]
            expected = reference_logits(merged, tokens).log_softmax(-1)[len(prompt) - 1 : -1]
            for (drew, told), row in zip(answer, expected, strict=True):
                assert abs(told.own - float(row[drew])) < 1e-4
    texts = {key: [token for token, _ in answer] for key, answer in drawn.items()}
    assert texts[1, 0] == texts[3, 0]
    assert len({tuple(texts[number, 0]) for number in range(3)}) == 3


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported"),
        ({"use_dora": True}, "use_dora is not supported"),
        ({"bias": "lora_only"}, "trained bias is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is not supported"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern is not supported"),
        ({"alpha_pattern": {"q_proj": 8}}, "alpha_pattern is not supported"),
        ({"init_lora_weights": "pissa"}, "changes the base's weights"),
        ({"init_lora_weights": "lora_ga"}, "changes the base's weights"),
        ({"of_tomorrow": 1}, "of_tomorrow is not supported"),
        ({"r": 8}, "its rank is 8"),
        ({"r": 0}, "r must be at least 1"),
        ({"lora_alpha": None}, "lora_alpha must be a number"),
    ],
    ids=str,
)
def test_settings_that_are_not_carried_out_are_refused(tmp_path: Path, settings: dict[str, Any], reason: str) -> None:
    model = save(tmp_path / "model")
    write_adapter(tmp_path / "a", model, LLAMA, 1, **settings)
    with pytest.raises(ModelError, match=f"adapter mine: .*{reason}"):
        load_model(tmp_path / "model", torch.float32, None, [("mine", str(tmp_path / "a"))])


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_tensors_must_fit_the_model(tmp_path: Path, kind: str) -> None:
    save(tmp_path / "model", kind)
    layer, module = ("transformer.h.0", "attn.c_attn") if kind == "gpt2" else ("model.layers.0", "self_attn.q_proj")
    good = {"A": torch.zeros(4, 48), "B": torch.zeros(144 if kind == "gpt2" else 48, 4)}

    def load(names: dict[str, torch.Tensor]) -> None:
        folder = tmp_path / "a"
        folder.mkdir(exist_ok=True)
        save_file(
            {f"base_model.model.{name}": tensor for name, tensor in names.items()}, folder / "adapter_model.safetensors"
        )
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 4}')
        load_model(tmp_path / "model", torch.float32, None, [("mine", str(folder))])

    def pair(name: str, a: torch.Tensor = good["A"], b: torch.Tensor = good["B"]) -> dict[str, torch.Tensor]:
        return {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}

    load(pair(f"{layer}.{module}"))
    for wrong, reason in [
        (pair(f"{layer}.{module}", b=torch.zeros(20, 4)), "20"),
        (pair(f"{layer}.{module}", a=torch.zeros(4, 47)), "47"),
        (pair(f"{layer}.other"), "not among"),
        (pair("lm_head", b=torch.zeros(97, 4)), "not among"),
        ({f"{layer}.{module}.lora_A.weight": good["A"]}, "halves for"),
        ({f"{layer}.{module}.lora_magnitude_vector": torch.zeros(4)}, "not half of a LoRA"),
        ({f"{layer}.lora_embedding_A": torch.zeros(4, 4)}, "not half of a LoRA"),
        ({}, "contains no tensors"),
    ]:
        with pytest.raises(ModelError, match=f"adapter mine: .*{reason}"):
            load(wrong)


def test_files_of_adapters(tmp_path: Path) -> None:
    model = save(tmp_path / "model")
    write_adapter(tmp_path / "a", model, LLAMA, 1)

    def refused(reason: str) -> None:
        with pytest.raises(ModelError, match=reason):
            load_model(tmp_path / "model", torch.float32, None, [("mine", str(tmp_path / "a"))])

    file = tmp_path / "a" / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    refused("damaged or truncated")
    file.rename(tmp_path / "a" / "adapter_model.bin")
    refused("a pickle, which can run any code")
    (tmp_path / "a" / "adapter_model.bin").unlink()
    refused("has no adapter_model.safetensors")
    (tmp_path / "a" / "adapter_config.json").unlink()
    refused(r"adapter_config\.json cannot be read")
