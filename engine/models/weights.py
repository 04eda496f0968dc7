"""A model's tensors, wherever they lie: a Hugging Face folder of safetensors, or a GGUF file.

Both are a Checkpoint: tensors under Hugging Face's names and in its layout, read one at a time into
memory that the caller owns, converted on the way. The files stay mapped, so that loading holds one
tensor more than the model. Formats that run code when they are opened (pickles) are refused.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import torch

from engine.errors import ModelError
from engine.models.hf_folder import open_folder
from engine.models.spec import ModelSpec
from engine.models.stored import Weights

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


class Checkpoint(Protocol):
    """An open model. Valid inside the `with` block of open_checkpoint only."""

    @property
    def spec(self) -> ModelSpec:
        """What the model is made of."""
        ...

    @property
    def names(self) -> frozenset[str]:
        """Hugging Face names of all tensors that are there."""
        ...

    def read(self, name: str, out: torch.Tensor) -> None:
        """Fill `out` with a tensor, converted to its dtype; raises ModelError if missing or of another shape."""
        ...

    def stored(self, name: str, shape: tuple[int, int]) -> Weights | None:
        """A matrix in the few bits in which it is kept; None where these are no fewer than float32's, or mean what is
        not known. Raises ModelError as `read`."""
        ...


def open_checkpoint(path: Path) -> AbstractContextManager[Checkpoint]:
    """Open a folder or a .gguf file; raises ModelError, with the reason, for whatever else lies there."""
    if not path.exists():
        raise ModelError(f"{path} does not exist")
    if path.is_dir():
        return open_folder(path)
    if path.suffix == ".gguf":
        # Imported here: nobody else needs the library of its formats.
        from engine.models.gguf_file import open_gguf

        return open_gguf(path)
    if path.suffix in _PICKLES:
        raise ModelError(f"{path} is a pickle, which can run any code when opened; convert it to safetensors")
    raise ModelError(f"{path} is neither a folder with a model nor a .gguf file")
