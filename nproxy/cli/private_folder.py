"""A folder that only this user can enter, for as long as a block runs; it outlives no process for long.

A process that is killed leaves its folder. The next one removes it, and knows it by its lock: a folder in use is locked
(flock), and the system lets go of the locks of the dead.
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
    """A new folder in `place`, of mode 0700 and removed afterwards, as are those that were left there."""
    for left in place.glob(f"{PREFIX}*"):
        _remove_if_left(left)
    folder, lock = _new_folder(place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _new_folder(place: Path) -> tuple[Path, int]:
    """A folder, and the file descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        with suppress(FileNotFoundError):  # another process took it for one that was left, before it had its lock
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # where there are no such locks, nobody can take one and remove the folder
                fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):  # another user's, or gone meanwhile
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError, which is an OSError: it is in use
            if os.fstat(lock).st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
