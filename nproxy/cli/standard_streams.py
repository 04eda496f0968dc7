"""The three standard streams, in whatever state the process received them."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path

_STREAMS = (0, 1, 2)
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def make_fit() -> None:
    """Make them usable for commands; must be called before anything else is opened."""
    open_missing()
    null = Path(os.devnull)  # Python has None for a stream that was closed at the start
    sys.stdin = sys.stdin or null.open(encoding="utf-8")
    sys.stdout = sys.stdout or null.open("w", encoding="utf-8")
    sys.stderr = sys.stderr or null.open("w", encoding="utf-8")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a server's words may contain a lone surrogate, and a terminal may not support UTF-8
        sys.stdout.reconfigure(errors="replace")


def open_missing() -> None:
    """Open the null device in place of standard streams that were closed.

    Otherwise the next socket would get such a stream's number, and what is written to standard error, also by an engine
    child, would go to a client or an upstream.
    """
    for stream in _STREAMS:
        try:
            os.fstat(stream)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(null, True)


def unwritable(error: OSError) -> bool:
    """Whether an error came from writing to a stream: the disk is full, or the device failed. It has no file name."""
    return error.filename is None and error.errno in _UNWRITABLE
