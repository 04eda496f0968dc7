"""The progress of a download, measured by how much a folder grows, so that the downloader need not report it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

_LOOKS_PER_SECOND = 10


@contextlib.contextmanager
def growth(what: str, folder: Path, total: int) -> Iterator[None]:
    """On a terminal, show a bar on standard error while the block runs. total: bytes by which the folder will grow."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    there, over = bytes_below(folder), threading.Event()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)

        def look() -> None:
            while not over.wait(1 / _LOOKS_PER_SECOND):
                progress.update(task, completed=min(bytes_below(folder) - there, total))

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            yield
        finally:
            over.set()
            looking.join()


def bytes_below(folder: Path) -> int:
    """Return the bytes of all files below a folder; files may appear and vanish meanwhile. Links are not followed."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += (Path(parent) / name).lstat().st_size
    return size
