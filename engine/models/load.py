"""Loads a model from a path: with the engine's own decoder if it supports the model, otherwise with
transformers' class.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from engine.errors import ConfigError, ModelError
from engine.model_files import naming
from engine.models.llama import Decoder
from engine.models.lora import read_adapter
from engine.models.model import CPU, Model, sequence_limit
from engine.models.products import TORCH, Products
from engine.models.room import demand_room
from engine.models.spec_hf import Unsupported
from engine.models.weights import open_checkpoint

Adapters = Sequence[tuple[str, str]]


def load_model(
    path: Path,
    dtype: torch.dtype,
    max_model_len: int | None,
    adapters: Adapters = (),
    device: torch.device = CPU,
    *,
    int8: bool = False,
    products: Products = TORCH,
) -> Model:
    """Load a Hugging Face folder or a .gguf file, and adapters for it as (name, folder), to a device.

    int8: quantize the weights of the decoder's products. products: how these are computed. Raises ModelError for files
    that cannot be run, ConfigError if max_model_len exceeds the model's own limit, if int8 is not supported by this CPU
    or for this model, or if the weights cannot be in memory.
    """
    with naming(path):
        model = _load(path, dtype, max_model_len, device, products, int8=int8)
    for name, folder in adapters:
        try:
            with naming(Path(folder)):
                pairs = read_adapter(Path(folder), dtype)
                model.adapt(name, {module: pair.to(device) for module, pair in pairs.items()})
        except ModelError as error:
            raise ModelError(f"adapter {name}: {error}") from error
    return model


def _load(
    path: Path, dtype: torch.dtype, max_model_len: int | None, device: torch.device, products: Products, *, int8: bool
) -> Model:
    try:
        with open_checkpoint(path) as checkpoint:
            if device == CPU:
                demand_room(path, checkpoint.sizes, 1 if int8 else dtype.itemsize, keep=products.keep and not int8)
            limit = sequence_limit(max_model_len, checkpoint.spec.context, checkpoint.spec.longest)
            return Decoder(checkpoint, dtype, limit, device, int8=int8, products=products)
    except Unsupported as unsupported:
        if int8:
            raise ConfigError(
                f"quantization is for models that the engine's own decoder runs, and not for this one: {unsupported}"
            ) from unsupported
        # Imported here because it imports transformers, which takes seconds and which other models do not need.
        from engine.models.bridge import Bridge

        return Bridge(path, dtype, max_model_len, device)
