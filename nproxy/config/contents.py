"""What is in a file that settings are read from."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_OPEN_ALREADY = ("/proc/", "/dev/fd/")


def contents(file: Path) -> bytes:
    """Read a file whole. Raises OSError, for a pipe that has a name too: reading waits for whoever writes to it.

    The pipe of a shell's `<(command)` has none of its own, and somebody writes to it.
    """
    if file.is_fifo() and not os.path.realpath(file).startswith(_OPEN_ALREADY):
        raise OSError(errno.EINVAL, "it is a named pipe")
    return file.read_bytes()
