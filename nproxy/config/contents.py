"""Reading of the files that hold settings."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_OPEN_ALREADY = ("/proc/", "/dev/fd/")


def contents(file: Path) -> bytes:
    """Read a whole file.

    Raises OSError, also for a named pipe: reading one blocks until another process writes to it. The pipe of a shell's
    `<(command)` has no name of its own and always has a writer, so it is read.
    """
    if file.is_fifo() and not os.path.realpath(file).startswith(_OPEN_ALREADY):
        raise OSError(errno.EINVAL, "it is a named pipe")
    return file.read_bytes()
