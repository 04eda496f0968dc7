"""Signals that mean something to a gateway that serves, and reach one that still starts."""

from __future__ import annotations

import os
import signal
from types import FrameType


def outlive_reload_signals() -> None:
    """Do nothing at SIGHUP and SIGUSR2 until the gateway handles them: by default, they end a process.

    What SIGHUP is sent for is not lost: files that change after they were read are noticed without it. If standard
    input is a terminal, SIGHUP may mean that it is closed, and ends the start.
    """
    signal.signal(signal.SIGUSR2, _nothing)
    if not os.isatty(0):
        signal.signal(signal.SIGHUP, _nothing)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Unlike SIG_IGN, a handler is not inherited by the programs that are started."""
