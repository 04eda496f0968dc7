"""The three standard streams, whatever state the process was given them in."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path

_STREAMS = (0, 1, 2)
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def make_fit() -> None:
    """Make them such that commands can read and write them; called before anything else is opened."""
    open_missing()
    null = Path(os.devnull)  # Python has None for a stream that was closed when it began
    sys.stdin = sys.stdin or null.open(encoding="utf-8")
    sys.stdout = sys.stdout or null.open("w", encoding="utf-8")
    sys.stderr = sys.stderr or null.open("w", encoding="utf-8")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # what a server says may hold half a surrogate pair, and a terminal may know no UTF-8
        sys.stdout.reconfigure(errors="replace")


def open_missing() -> None:
    """Open the null device in place of standard streams that were closed.

    Else the next socket would get the number of one, and what is written to standard error, by an engine child too,
    would go to a client or an upstream.
    """
    for stream in _STREAMS:
        try:
            os.fstat(stream)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
            os.set_inheritable(null, True)


def unwritable(error: OSError) -> bool:
    """Whether this was raised by writing to a stream: the disk is full, or the device broke. It has no file name."""
    return error.filename is None and error.errno in _UNWRITABLE
