"""Whether a model's weights can be in memory at all, by the headers of its files.

Linux gives memory that it does not have, and kills the process that then uses it: without a word, or with the others of
its container.
"""

from __future__ import annotations

from pathlib import Path

from engine.errors import ConfigError
from engine.models.stored import Sizes
from engine.resources import ram, swap

_GIB = 2**30


def demand_room(path: Path, sizes: Sizes, itemsize: int, *, keep: bool) -> None:
    """Raise ConfigError if a model's weights take more memory than there is, with swap.

    sizes: of the tensors in its files. itemsize: the bytes of a weight in memory. keep: whether weights may stay in the
    fewer bits that the files use.
    """
    needed, there = least_bytes(sizes, itemsize, keep=keep), ram() + swap()
    if needed > there:
        both = f"{needed / _GIB:.1f} GiB, and there are {there / _GIB:.1f} GiB of memory"
        raise ConfigError(f"the weights of {path} take at least {both}")


def least_bytes(sizes: Sizes, itemsize: int, *, keep: bool) -> int:
    """Return how many bytes the weights take at least."""
    return sum(min(count * itemsize, size) if keep else count * itemsize for count, size in sizes)
