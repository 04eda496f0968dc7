"""LoRA adapters with random weights, in the files that PEFT writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


def write_adapter(
    folder: Path, model: torch.nn.Module, modules: Sequence[str], seed: int, *, rank: int = 4, **settings: Any
) -> None:
    """Write an adapter for some modules of a transformers model."""
    torch.manual_seed(seed)
    tensors = {}
    for name in modules:
        weight = model.get_parameter(f"{name}.weight")
        wide, out = weight.shape if "transformer.h" in name else weight.shape[::-1]
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, wide) * 0.3
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(out, rank) * 0.3
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 8,
        "target_modules": sorted({name.rpartition(".")[2] for name in modules}),
        "bias": "none",
        "lora_dropout": 0.05,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
        "init_lora_weights": True,
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config | settings))
