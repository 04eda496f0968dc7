"""What holds for all files of a model: which are opened at all, and that an error names them."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import ModelError

MOST_BYTES = 256 << 20
"""Of a file that is read into memory whole. A tokenizer of a large vocabulary has 40 MB."""
_LONGEST = 500  # characters of an error; a file may contain anything


def demand_file(file: Path, most: int | None = None) -> None:
    """Raise ModelError for a pipe, a device or a folder, which may keep who reads it waiting, and for more than `most`
    bytes.

    If there is nothing, or nothing that may be looked at, opening the file says so better.
    """
    try:
        found = file.stat()
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(found.st_mode):
        raise ModelError(f"{file} cannot be read: it is not a regular file")
    if most is not None and found.st_size > most:
        raise ModelError(f"{file} cannot be read: it has {found.st_size} bytes, and at most {most} are read")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make a ModelError one line of bounded length that names the path, and an OSError such a ModelError."""
    try:
        yield
    except OSError as error:
        raise ModelError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error
    except ModelError as error:
        line = " ".join([part.strip() for part in str(error).splitlines()])
        line = line if str(path) in line else f"{path}: {line}"
        raise ModelError(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…") from error
