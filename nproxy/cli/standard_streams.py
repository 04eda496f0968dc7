"""The three standard streams, whatever state the process was given them in."""

from __future__ import annotations

import os

_STREAMS = (0, 1, 2)


def open_missing() -> None:
    """Open the null device in place of standard streams that were closed.

    Else the next socket would get the number of one, and what is written to standard error, by an engine child too,
    would go to a client or an upstream. Called before anything else is opened.
    """
    for stream in _STREAMS:
        try:
            os.fstat(stream)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
            os.set_inheritable(null, True)
