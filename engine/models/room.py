"""Whether a model's weights can be in memory at all, by the headers of its files.

Linux gives memory that it does not have, and kills the process that then uses it: without a word, or with the others of
its container.
"""

from __future__ import annotations

from pathlib import Path

import torch

from engine.errors import ConfigError
from engine.models.hf_folder import folder_tensors
from engine.resources import ram

_GIB = 2**30


def demand_room(path: Path, dtype: torch.dtype, *, int8: bool) -> None:
    """Raise ConfigError if the weights of a folder or .gguf file take more memory than this process may use.

    int8: matrices are quantized while they load. Raises ModelError for files without readable headers.
    """
    needed, there = least_bytes(path, torch.int8.itemsize if int8 else dtype.itemsize), ram()
    if needed > there:
        kind = "int8" if int8 else str(dtype).removeprefix("torch.")
        sizes = f"{needed / _GIB:.1f} GiB as {kind}, and there are {there / _GIB:.1f} GiB of memory"
        raise ConfigError(f"the weights of {path} take {sizes}")


def least_bytes(path: Path, itemsize: int) -> int:
    """Return how many bytes the weights take at least: some products keep the few bits that the files use.

    itemsize: the bytes of a weight that is converted.
    """
    if path.is_dir():
        tensors = folder_tensors(path)
    else:
        # Imported here because nothing else needs the library of its formats.
        from engine.models.gguf_file import gguf_tensors

        tensors = gguf_tensors(path)
    return sum(min(count * itemsize, size) for count, size in tensors)
