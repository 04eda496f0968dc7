"""LoRA adapters in PEFT's folder format: adapter_config.json beside adapter_model.safetensors.

An adapter adds (x A^T) B^T * scale to some of a model's products (Hu et al., "LoRA: Low-Rank Adaptation of Large
Language Models", 2021). Nothing is merged into the weights: adapters and the base model run in one batch, each for its
own tokens. A setting that changes the numbers and is not supported here is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from engine.errors import ModelError
from engine.json_files import read_object
from engine.model_files import demand_file
from engine.models.fields import Fields
from engine.models.linear import Linear

_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_(A|B)\.weight")
_NO_MATTER = {  # settings of training, or evident from the tensors themselves
    *("auto_mapping", "base_model_name_or_path", "exclude_modules", "fan_in_fan_out", "inference_mode", "lora_alpha"),
    *("layers_pattern", "layers_to_transform", "lora_dropout", "megatron_core", "peft_type", "peft_version", "r"),
    *("ensure_weight_tying", "qalora_group_size", "revision", "target_modules", "task_type", "use_rslora"),
}
# Initializations that take something out of the base's weights.
_BASE_CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, slots=True)
class Pair:
    """What one product gets: x [T, in] -> x a b [T, out]; the adapter's scale is in b."""

    a: torch.Tensor  # [in, r]
    b: torch.Tensor  # [r, out]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x a b, by torch; a backend may compute it otherwise."""
        return x @ self.a @ self.b

    def to(self, device: torch.device) -> Pair:
        """Return the pair on a device."""
        return Pair(self.a.to(device), self.b.to(device))


@dataclass(frozen=True, slots=True)
class TokensOf:
    """Which tokens of a step run with an adapter; the others run with none."""

    adapter: str
    tokens: torch.Tensor  # [N] int64, positions in the step


def add_pair(y: torch.Tensor, x: torch.Tensor, pair: Linear, tokens: torch.Tensor) -> None:
    """Add the pair's part to y [T, out], a product of x [T, in], for some tokens [N]; in place."""
    y.index_add_(0, tokens, pair(x.index_select(0, tokens)))


def read_adapter(folder: Path, dtype: torch.dtype) -> dict[str, Pair]:
    """Return the adapter's pairs by the names of the products, which are transformers' names of a model's modules.

    Raises ModelError, with the reason, if the adapter is damaged, is no LoRA, or has more than a LoRA has.
    """
    rank, factor = _rank_and_factor(read_object(folder / "adapter_config.json"), folder)
    file = folder / "adapter_model.safetensors"
    if not file.exists():
        pickled = (folder / "adapter_model.bin").exists()
        why = "; its adapter_model.bin is a pickle, which can run any code when opened" if pickled else ""
        raise ModelError(f"{folder} has no adapter_model.safetensors{why}")
    demand_file(file)
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} is damaged or truncated: {error}") from error
    halves: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        match = _TENSOR.fullmatch(name)
        if match is None or tensor.ndim != 2 or not tensor.is_floating_point():
            raise ModelError(f"{file}: {name} of shape {tuple(tensor.shape)} is not half of a LoRA of a linear layer")
        halves.setdefault(match[1], {})[match[2]] = tensor
    pairs = {name: _pair(name, half, rank, factor, dtype) for name, half in halves.items()}
    if not pairs:
        raise ModelError(f"{file} contains no tensors")
    return pairs


def _pair(name: str, half: Mapping[str, torch.Tensor], rank: int, factor: float, dtype: torch.dtype) -> Pair:
    if half.keys() != {"A", "B"} or half["A"].shape[0] != rank or half["B"].shape[1] != rank:
        shapes = {key: tuple(tensor.shape) for key, tensor in half.items()}
        raise ModelError(f"the adapter's halves for {name} are {shapes}, but its rank is {rank}")
    # Contiguous, because the products read them so.
    a = half["A"].T.to(dtype, memory_format=torch.contiguous_format)
    b = (half["B"].float().T * factor).to(dtype, memory_format=torch.contiguous_format)
    return Pair(a, b)


def _rank_and_factor(config: Mapping[str, Any], folder: Path) -> tuple[int, float]:
    """Return the rank, and what the product is multiplied by."""
    f = Fields(config, str(folder / "adapter_config.json"))
    if (kind := f.get("peft_type")) != "LORA":
        raise f.refuse(f"peft_type {kind!r} is not supported (LORA is)")
    if f.get("bias") not in (None, "none"):
        raise f.refuse("a trained bias is not supported")
    begin = f.get("init_lora_weights")
    if isinstance(begin, str) and begin.lower().startswith(_BASE_CHANGING):
        raise f.refuse(f"init_lora_weights {begin!r} changes the base's weights; convert the adapter")
    for key in sorted(config.keys() - _NO_MATTER - {"bias", "init_lora_weights"}):
        if config[key]:
            raise f.refuse(f"{key} is not supported")
    rank = f.whole("r")
    if rank < 1:
        raise f.refuse(f"r must be at least 1, not {rank}")
    divisor = math.sqrt(rank) if f.flag("use_rslora", default=False) else rank
    return rank, f.number("lora_alpha") / divisor
