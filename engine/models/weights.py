"""A model's tensors, from a Hugging Face folder of safetensors or from a GGUF file.

Both are a Checkpoint: tensors under Hugging Face's names and in its layout, read one at a time into memory that the
caller owns, and converted on the way. The files stay mapped, so loading holds only one tensor more than the model.
Formats that run code when they are opened (pickles) are refused.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import torch

from engine.errors import ModelError
from engine.models.hf_folder import open_folder
from engine.models.spec import ModelSpec
from engine.models.stored import Sizes, Weights

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


class Checkpoint(Protocol):
    """An open model. Valid only inside the `with` block of open_checkpoint."""

    @property
    def spec(self) -> ModelSpec:
        """The model's sizes and switches."""
        ...

    @property
    def names(self) -> frozenset[str]:
        """The Hugging Face names of all tensors that exist."""
        ...

    @property
    def sizes(self) -> Sizes:
        """How large the tensors are."""
        ...

    def demand(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ModelError if a tensor is missing or has another shape; reads nothing."""
        ...

    def read(self, name: str, out: torch.Tensor) -> None:
        """Fill `out` with a tensor, converted to its dtype; raise ModelError if it is missing or has another shape."""
        ...

    def stored(self, name: str, shape: tuple[int, int]) -> Weights | None:
        """Return a matrix in the few bits in which it is kept.

        None if they are no fewer than float32's, or if the format is not known. Raises ModelError like `read`.
        """
        ...


def open_checkpoint(path: Path) -> AbstractContextManager[Checkpoint]:
    """Open a folder or a .gguf file; raise ModelError, with the reason, for anything else."""
    if not path.exists():
        raise ModelError(f"{path} does not exist")
    if path.is_dir():
        return open_folder(path)
    if path.suffix == ".gguf":
        # Imported here because nothing else needs the library of its formats.
        from engine.models.gguf_file import open_gguf

        return open_gguf(path)
    if path.suffix in _PICKLES:
        raise ModelError(f"{path} is a pickle, which can run any code when opened; convert it to safetensors")
    raise ModelError(f"{path} is neither a folder with a model nor a .gguf file")
