"""A folder that only this user can enter and that exists as long as a block runs.

A process that is killed leaves its folder behind, and the next one removes it. A folder in use is recognised by its
lock (flock), which the system releases when its process ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "nproxy-engine-"


@contextmanager
def private_folder(place: Path) -> Iterator[Path]:
    """Create a folder in `place`, of mode 0700, removed afterwards; also remove folders that were left behind there."""
    for left in place.glob(f"{PREFIX}*"):
        _remove_if_left(left)
    folder, lock = _new_folder(place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _new_folder(place: Path) -> tuple[Path, int]:
    """Create a folder; returns it and the file descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        with suppress(FileNotFoundError):  # another process took it for one left behind, before it was locked
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # if there are no such locks, no other process can get one and remove the folder
                fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):  # it belongs to another user, or is gone meanwhile
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError, which is an OSError, if it is in use
            if os.fstat(lock).st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
