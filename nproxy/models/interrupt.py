"""Ctrl-C while a library downloads in threads: Python would wait for them, however long they take."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from rich.console import Console

_OPEN_FILES = Path("/proc/self/fd")
_STOPPED = 130
"""The exit code of commands that Ctrl-C ends."""


@contextlib.contextmanager
def leaving_at_once(message: str, suffix: str) -> Iterator[None]:
    """While the block runs, SIGINT prints the message, removes partial files and exits the process with 130.

    Partial files are open files whose names end with `suffix`, if the system can list them (Linux). Threads in the
    middle of a read cannot be stopped, and Python would wait for them, so no other cleanup runs. Has no effect outside
    the main thread, because signals are handled only there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(signum: int, frame: FrameType | None) -> None:
        for file in _half_written(suffix):
            file.unlink(missing_ok=True)
        console = Console(stderr=True, highlight=False)
        console.show_cursor(True)
        console.print(f"\n{message}" if console.is_terminal else message, markup=False, soft_wrap=True)
        os._exit(_STOPPED)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _half_written(suffix: str) -> list[Path]:
    found = []
    with contextlib.suppress(OSError):
        for opened in _OPEN_FILES.iterdir():
            with contextlib.suppress(OSError):  # it was closed meanwhile
                found.append(opened.readlink())
    return [file for file in found if file.name.endswith(suffix)]
