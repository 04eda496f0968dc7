"""From a path to a loaded model: the engine's own decoder where it can, transformers' class of the model otherwise."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.models.llama import Decoder
from engine.models.model import Model, sequence_limit
from engine.models.spec_hf import Unsupported
from engine.models.weights import open_checkpoint


def load_model(path: Path, dtype: torch.dtype, max_model_len: int | None) -> Model:
    """Load a Hugging Face folder or a .gguf file.

    Raises ModelError for files that cannot be run, ConfigError where max_model_len exceeds the model's own limit.
    """
    try:
        with open_checkpoint(path) as checkpoint:
            return Decoder(checkpoint, dtype, sequence_limit(max_model_len, checkpoint.spec.context))
    except Unsupported:
        # Imported here: it brings in transformers, seconds that the other models need not wait for.
        from engine.models.bridge import Bridge

        return Bridge(path, dtype, max_model_len)
