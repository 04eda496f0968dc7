"""Whether a model's weights can be in memory at all, by the headers of its files.

Linux gives memory that it does not have, and kills the process that then uses it: without a word, or with the others of
its container.
"""

from __future__ import annotations

from pathlib import Path

from engine.errors import ConfigError
from engine.models.hf_folder import folder_tensors
from engine.resources import ram, swap

_GIB = 2**30


def demand_room(path: Path, itemsize: int, *, keep: bool) -> None:
    """Raise ConfigError if the weights of a folder or .gguf file take more memory than there is, with swap.

    itemsize: the bytes of a weight in memory. keep: whether weights may stay in the fewer bits that the files use.
    Raises ModelError for files without readable headers.
    """
    needed, there = least_bytes(path, itemsize, keep=keep), ram() + swap()
    if needed > there:
        sizes = f"{needed / _GIB:.1f} GiB, and there are {there / _GIB:.1f} GiB of memory"
        raise ConfigError(f"the weights of {path} take at least {sizes}")


def least_bytes(path: Path, itemsize: int, *, keep: bool) -> int:
    """Return how many bytes the weights take at least."""
    if path.is_dir():
        tensors = folder_tensors(path)
    else:
        # Imported here because nothing else needs the library of its formats.
        from engine.models.gguf_file import gguf_tensors

        tensors = gguf_tensors(path)
    return sum(min(count * itemsize, size) if keep else count * itemsize for count, size in tensors)
